"""Slurm's commands as recorded: read right, asked seldom, and believed only when they make sense."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from jobs_for_tests import SLURM, make_job, make_run, make_site

from prony.sites import slurm as answers
from prony.sites.job import Job, JobOutcome
from prony.sites.protocol import Caller, NoAnswer, QueueFull, Rendered, Unanswered, run_command
from prony.sites.slurm import Slurm, detect_cluster, detect_partition, fill_in, parse_time
from prony_node.contract import RequestError

FAILED = "sbatch: error: Batch job submission failed: "
LONG_AGO = "2026-01-01T00:00:00+00:00"


class Recorded:
    """A scheduler of answers: each command has a list of what it says, the last one again and again."""

    def __init__(self, **said: object) -> None:
        self.said = {name: list(texts) if isinstance(texts, list) else [texts] for name, texts in said.items()}
        self.calls: list[tuple[float, tuple[str, ...]]] = []
        self.now_s = 1e9 * 2

    def run(self, argv: Sequence[str], patience_s: float) -> str:
        self.calls.append((self.now_s, tuple(argv)))
        texts = self.said.get(argv[0])
        if texts is None:
            raise NoAnswer(f"{argv[0]} is not installed here", missing=True)
        answer = texts.pop(0) if len(texts) > 1 else texts[0]
        if isinstance(answer, Exception):
            raise answer
        return answer(argv) if callable(answer) else str(answer)

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    @property
    def caller(self) -> Caller:
        return Caller(self.run, self.sleep, lambda: self.now_s)

    def times(self, name: str) -> list[float]:
        return [at_s for at_s, argv in self.calls if argv[0] == name]


def submitted(number: int) -> Job:
    return replace(make_job(make_site(SLURM), [make_run()]), handle=str(number), submitted=LONG_AGO, state="submitted")


@pytest.fixture
def launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Slurm, Recorded, list[str]]]:
    def make(**said: object) -> tuple[Slurm, Recorded, list[str]]:
        monkeypatch.delenv("SLURM_CONF", raising=False)
        recorded, warnings = Recorded(**said), []
        return Slurm(warnings.append, recorded.caller, tmp_path / "cache"), recorded, warnings

    return make


Make = Callable[..., tuple[Slurm, Recorded, list[str]]]


def test_a_thousand_jobs_are_one_call_in_five_seconds(launcher: Make) -> None:
    jobs = [submitted(number) for number in range(1000)]
    states = ("PENDING|Priority", "RUNNING|None")
    queue = "".join(f"{number}|{states[number % 2]}|prony-{number}\n" for number in range(1000))
    slurm, recorded, _ = launcher(squeue=queue)
    for _ in range(90):  # every second, for a minute and a half
        recorded.sleep(1.0)
        found = slurm.status(jobs).of
        assert len(found) == 1000
    assert (found["3"].phase, found["4"].phase, found["4"].reason) == ("running", "queued", "Priority")
    times = recorded.times("squeue")
    assert 15 <= len(times) <= 18
    assert min(after - before for before, after in itertools.pairwise(times)) >= 5.0
    assert {argv[0] for _, argv in recorded.calls} == {"squeue"}
    assert all("-j" not in argv for _, argv in recorded.calls)


def test_accounting_is_not_asked_more_often_than_squeue(launcher: Make) -> None:
    slurm, recorded, _ = launcher(squeue="", sacct="")
    for _ in range(30):  # every second, as `prony site check` looks
        recorded.sleep(1.0)
        assert slurm.status([submitted(1), submitted(2)]).of["1"].phase == "unknown"
    assert len(recorded.times("sacct")) == len(recorded.times("squeue")) <= 7


def test_accounting_that_falters_is_asked_again_before_files_are_believed(launcher: Make, tmp_path: Path) -> None:
    """A job that ran into its limit may end its script well: only accounting knows what happened."""
    down = NoAnswer("sacct failed", "sacct: error: slurm_persist_conn_open: failed to open persistent connection")
    slurm, recorded, warnings = launcher(squeue="", sacct=[down, "<garbled>\n", "1|TIMEOUT|0:0|None\n"])
    job = replace(submitted(1), root=tmp_path)
    job.folder.mkdir(parents=True)
    (job.folder / "ended").write_text("0\n")
    assert slurm.status([job]).of["1"].state == "TIMEOUT"
    assert len(warnings) == 2
    first, second, third = recorded.times("sacct")
    assert third - second > second - first >= 5.0


def test_a_site_without_accounting_is_not_asked_twice(launcher: Make) -> None:
    disabled = NoAnswer("sacct failed", "Slurm accounting storage is disabled")
    slurm, recorded, _ = launcher(squeue="1|COMPLETED|None|a\n", sacct=disabled)
    assert slurm.status([submitted(1)]).of["1"].state == "COMPLETED"
    assert len(recorded.times("sacct")) == 1


def test_several_processes_share_one_answer(launcher: Make) -> None:
    slurm, recorded, _ = launcher(squeue="1|RUNNING|None\n")
    other = Slurm(print, recorded.caller, slurm._squeue._path.parent)
    slurm.status([submitted(1)])
    assert other.status([submitted(1)]).of["1"].phase == "running"
    assert len(recorded.times("squeue")) == 1


def test_a_missing_or_garbled_answer_is_a_warning_and_a_retry_with_a_growing_pause(launcher: Make) -> None:
    broken = NoAnswer("squeue failed: slurm_load_jobs error: Unable to contact slurm controller")
    slurm, recorded, warnings = launcher(squeue=[broken, "<html>502</html>\n", "1|RUNNING|None\n"])
    assert slurm.status([submitted(1)]).of["1"].phase == "running"
    assert len(warnings) == 2
    assert "Unable to contact" in warnings[0]
    assert "cannot be read" in warnings[1]
    first, second, third = recorded.times("squeue")
    assert third - second > second - first >= 5.0


def test_no_answer_at_all_is_nothing_known_and_nothing_lost(launcher: Make) -> None:
    slurm, recorded, warnings = launcher(squeue=NoAnswer("squeue did not answer within 60 s", timed_out=True))
    assert slurm.status([submitted(1)]).of == {}
    assert "asked for again later" in warnings[-1]
    calls = len(recorded.calls)
    assert slurm.status([submitted(1)]).of == {}
    assert len(recorded.calls) == calls, "a failed try counts as a call"


def test_a_job_younger_than_the_answer_is_not_missing(launcher: Make) -> None:
    slurm, recorded, _ = launcher(squeue="", sacct="")
    young = datetime.fromtimestamp(recorded.now_s, UTC).isoformat()
    assert slurm.status([replace(submitted(1), submitted=young)]).of == {}


def test_what_squeue_no_longer_knows_accounting_does(launcher: Make) -> None:
    slurm, recorded, _ = launcher(
        squeue="", sacct="1|CANCELLED by 1000|0:15|None\n2|NODE_FAIL|1:0|None\n3|RUNNING|0:0|None\n"
    )
    found = slurm.status([submitted(number) for number in (1, 2, 3)]).of
    assert [(found[n].phase, found[n].state) for n in ("1", "2", "3")] == [
        ("ended", "CANCELLED"), ("ended", "NODE_FAIL"), ("unknown", ""),
    ]  # fmt: skip
    assert len(recorded.times("sacct")) == 1


def test_without_accounting_the_files_of_a_job_say_how_it_ended(launcher: Make, tmp_path: Path) -> None:
    slurm, _, warnings = launcher(squeue="1|TIMEOUT|TimeLimit|a\n")
    known = replace(submitted(2), root=tmp_path)
    known.folder.mkdir(parents=True)
    (known.folder / "ended").write_text("0\n")
    found = slurm.status([submitted(1), known, submitted(3)]).of
    assert (found["1"].state, found["2"].state, found["3"].phase) == ("TIMEOUT", "COMPLETED", "unknown")
    assert "sacct is not installed" in warnings[0]


RENDERED = Rendered({}, ("sbatch", "--parsable", "job.sh"))


def test_sbatch_that_fails_twice_and_then_works(launcher: Make) -> None:
    busy = NoAnswer(
        "sbatch failed", "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"
    )
    slurm, recorded, warnings = launcher(sbatch=[busy, busy, "4711;cluster\n"], squeue="")
    assert slurm.submit(submitted(0), RENDERED) == "4711"
    assert len(warnings) == 2
    assert "Socket timed out" in warnings[0]
    assert len(recorded.times("sbatch")) == 3


def test_a_job_that_was_taken_although_sbatch_failed_is_not_submitted_twice(launcher: Make) -> None:
    silent = NoAnswer("sbatch did not answer within 60 s", timed_out=True)
    job = submitted(0)
    slurm, recorded, _ = launcher(sbatch=silent, squeue=f"98|RUNNING|None|else\n99|PENDING|None|{job.id}\n")
    assert slurm.submit(job, RENDERED) == "99"
    assert len(recorded.times("sbatch")) == 1


def test_submitting_a_thousand_jobs_to_a_busy_slurm_asks_squeue_once_in_five_seconds(launcher: Make) -> None:
    busy = NoAnswer("sbatch failed", "sbatch: error: Socket timed out on send/recv operation")
    slurm, recorded, _ = launcher(sbatch=[busy, "1\n"] * 1000, squeue="")
    for number in range(1000):
        assert slurm.submit(replace(submitted(0), id=f"prony-{number}"), RENDERED) == "1"
        slurm.status([submitted(2)])
    times = recorded.times("squeue")
    assert min(after - before for before, after in itertools.pairwise(times)) >= 5.0
    asked = {argv for _, argv in recorded.calls if argv[0] == "squeue"}
    assert len(asked) == 1, "the one question about all jobs"


def test_a_job_that_an_ended_controller_may_have_submitted_is_looked_for_first(launcher: Make) -> None:
    job = replace(submitted(0), tried=True)
    slurm, recorded, _ = launcher(sbatch="100\n", squeue=f"99|RUNNING|None|{job.id}\n")
    assert slurm.submit(job, RENDERED) == "99"
    assert recorded.times("sbatch") == []
    silent = NoAnswer("squeue did not answer within 60 s", timed_out=True)
    slurm, recorded, _ = launcher(sbatch="100\n", squeue=silent)
    recorded.sleep(5.0)
    with pytest.raises(Unanswered, match="squeue did not answer"):
        slurm.submit(job, RENDERED)
    assert recorded.times("sbatch") == [], "nobody knows, so nothing is submitted"


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (f"sbatch: error: invalid partition specified: nope\n{FAILED}Invalid partition", "specified: nope"),
        (f"{FAILED}Requested node configuration is not available", "not available"),
        (f"{FAILED}Invalid account or account/partition combination specified", "Invalid account"),
    ],
)  # fmt: skip
def test_what_slurm_refuses_for_good_is_not_tried_again(launcher: Make, said: str, words: str) -> None:
    slurm, recorded, _ = launcher(sbatch=NoAnswer("sbatch failed", said))
    with pytest.raises(RequestError, match=f"Slurm refused the job: .*{re.escape(words)}"):
        slurm.submit(submitted(0), RENDERED)
    assert len(recorded.calls) == 1


def test_a_full_queue_is_waited_for(launcher: Make) -> None:
    said = f"sbatch: error: AssocMaxSubmitJobLimit\n{FAILED}Job violates accounting/QOS policy"
    slurm, _, _ = launcher(sbatch=NoAnswer("sbatch failed", said))
    with pytest.raises(QueueFull, match="AssocMaxSubmitJobLimit"):
        slurm.submit(submitted(0), RENDERED)


def test_a_machine_without_slurm_says_so(launcher: Make) -> None:
    slurm, _, _ = launcher()
    with pytest.raises(RequestError, match="sbatch is not installed here: here is a Slurm site"):
        slurm.submit(submitted(0), RENDERED)
    with pytest.raises(RequestError, match="cannot be listed"):
        slurm.nodes(make_site(SLURM), make_site(SLURM).partitions["gpu"])


def test_cancelling_what_has_ended_is_no_mistake(launcher: Make) -> None:
    ended = NoAnswer("scancel failed", "scancel: error: Kill job error on job id 1: Invalid job id specified")
    slurm, recorded, _ = launcher(scancel=ended)
    slurm.cancel([submitted(1), submitted(2)])
    assert recorded.calls[0][1] == ("scancel", "1", "2")


@pytest.mark.parametrize(
    ("state", "kind"),
    [
        ("TIMEOUT", "time-limit"), ("OUT_OF_MEMORY", "out-of-memory"), ("NODE_FAIL", "node-failure"),
        ("PREEMPTED", "interrupted"), ("CANCELLED", "interrupted"), ("FAILED", "lost"), ("COMPLETED", "lost"),
        ("", "lost"), ("BOOT_FAIL", "node-failure"), ("DEADLINE", "time-limit"),
    ],
)  # fmt: skip
def test_a_state_of_slurm_is_a_failure_with_its_reason(state: str, kind: str) -> None:
    failure = answers.failure_of(JobOutcome(state, "", "1:0"), "77", 600.0)
    assert failure["kind"] == kind
    assert "77" in failure["message"]


def test_lines_of_squeue_that_make_no_sense_are_passed_over() -> None:
    text = "1|RUNNING|None\nslurm_load: warning\n2|PENDING|(Resources, Priority)|a|b\n12_3|RUNNING|None\n"
    assert set(answers.parse_squeue(text)) == {"1", "2"}
    assert answers.is_squeue("")
    arrays = "7|RUNNING|None\n12_0|RUNNING|None\n12_1|RUNNING|None\n13_[1-99%4]|PENDING|Priority\n"
    assert answers.is_squeue(arrays), "a person may have more arrays than jobs of ours"
    assert answers.is_squeue("14+0|RUNNING|None\n14+1|RUNNING|None\n")
    assert not answers.is_squeue("error: 1\nerror: 2\n1|RUNNING|None\n")
    assert answers.parse_squeue("1|SOMETHING_NEW|None\n")["1"].phase == "running", "it is in the queue"


def test_what_a_cluster_says_of_itself() -> None:
    recorded = Recorded(
        sinfo="gpu*|up|8|128|2-00:00:00|gpu:a100:4(S:0-1),nic:1|g[1-8]\ncpu|up|2|64+|infinite|(null)|c[1-2]\nold|down|1|1|1:00|(null)|o\n",
        scontrol="NodeName=g1 Arch=aarch64 CoresPerSocket=64\n", sacctmgr="project1\n",
    )  # fmt: skip
    found = detect_cluster(print, recorded.caller)
    gpu = found.partitions["gpu"]
    assert (found.default, list(found.partitions)) == ("gpu", ["gpu", "cpu"])
    assert (gpu.accelerators, gpu.gres, gpu.arch, gpu.nodes, gpu.cores_per_device) == (4, "gpu:a100", "arm64", 8, 32)
    assert (gpu.max_time_s, found.partitions["cpu"].max_time_s) == (172800.0, None)
    assert found.partitions["cpu"].accelerators == 0
    assert parse_time("30:00") == 1800.0


def test_a_partition_of_several_kinds_of_nodes_is_that_of_its_accelerators() -> None:
    mixed = Recorded(sinfo=(
        "all*|up|6|64|1:00:00|(null)|c[1-6]\nall*|up|2|96|1:00:00|gpu:h100:4|h[1-2]\n"
        "all*|up|3|80|1:00:00|gpu:h100:4|h[3-5]\nall*|up|9|48|1:00:00|gpu:a100:8|a[1-9]\n"
    ), scontrol="NodeName=h1 Arch=x86_64\n")  # fmt: skip
    found = detect_partition("all", print, mixed.caller)
    assert found is not None
    assert (found.accelerators, found.accelerator, found.gres, found.nodes) == (4, "H100", "gpu:h100", 5)
    assert (found.cores_per_device, mixed.calls[-1][1][-1]) == (20, "h[1-2]")
    assert detect_partition("none", print, Recorded(sinfo="").caller) is None


def test_accelerators_that_a_file_does_not_state_are_asked_for() -> None:
    partition = make_site("kind: slurm\npartition: gpu\n").partitions["gpu"]
    assert fill_in(partition, print, Recorded(sinfo="1:00:00|gpu:2|g1\n").caller).accelerators == 2
    assert fill_in(partition, print, Recorded(sinfo="infinite|(null)|g1\n").caller).accelerators == 0
    assert fill_in(partition, print, Recorded(sinfo="1:00:00|gpu:2|g1\n").caller).max_time_s == 3600.0
    mixed = "1:00:00|gpu:v100:2|g1\n1:00:00|gpu:a100:4(S:0-1)|g2\n"
    named = replace(partition, gres="gpu:a100")
    found = fill_in(named, print, Recorded(sinfo=mixed).caller)
    assert (found.accelerators, found.gres) == (4, "gpu:a100"), "the kind that the file names"
    warnings: list[str] = []
    assert fill_in(replace(named, gres="gpu:h100"), warnings.append, Recorded(sinfo=mixed).caller).accelerators == 0
    assert "sinfo lists no gpu:h100 in partition gpu" in warnings.pop()
    assert fill_in(partition, warnings.append, Recorded().caller).accelerators is None
    assert "accelerators" in warnings[0]


def test_the_architecture_is_asked_for_where_there_is_an_image_to_choose() -> None:
    partition = make_site("kind: slurm\npartition: gpu\n").partitions["gpu"]
    recorded = Recorded(sinfo="1:00:00|gpu:2|g[1-8]\n", scontrol="NodeName=g1 Arch=aarch64 CoresPerSocket=64\n")
    assert fill_in(partition, print, recorded.caller).arch is None
    assert fill_in(partition, print, recorded.caller, arch=True).arch == "arm64"
    assert recorded.calls[-1][1] == ("scontrol", "-o", "show", "node", "g[1-8]")
    known = replace(partition, arch="amd64", accelerators=1, max_time_s=60.0)
    assert fill_in(known, print, Recorded().caller, arch=True) == known, "nobody is asked what the file says"


def test_an_answer_is_not_shared_through_a_folder_that_others_write_to(launcher: Make, tmp_path: Path) -> None:
    """On a login node it lies in /tmp, where anyone could have made it, with links to our files in it."""
    slurm, recorded, _ = launcher(squeue="1|RUNNING|None\n")
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o777)
    for name in ("squeue.json", "squeue.lock"):
        (tmp_path / "precious").write_text("mine")
        (tmp_path / "cache" / name).symlink_to(tmp_path / "precious")
    assert slurm.status([submitted(1)]).of["1"].phase == "running"
    assert slurm.status([submitted(1)]).of["1"].phase == "running"
    assert (tmp_path / "precious").read_text() == "mine"
    assert len(recorded.times("squeue")) == 1, "this process still asks once in 5 s"


def test_a_command_is_bounded_and_its_last_words_kept() -> None:
    assert run_command(["printf", "x"]) == "x"
    with pytest.raises(NoAnswer, match="not installed") as missing:
        run_command(["no-such-command-here"])
    assert missing.value.missing
    with pytest.raises(NoAnswer, match="failed: two") as failed:
        run_command(["bash", "-c", "echo one >&2; echo two >&2; exit 3"])
    assert failed.value.said == "one\ntwo"
    with pytest.raises(NoAnswer, match="did not answer") as slow:
        run_command(["sleep", "60"], 0.05)
    assert slow.value.timed_out
