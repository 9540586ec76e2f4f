"""Jobs of other users in a root that several can write to: looked at, never acted on."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from prony.cli.main import make_app
from prony.sites.job import BlockRun, Job, load, load_jobs, new_job, save_job
from prony.sites.jobs import Jobs
from prony.sites.local import LocalJobs
from prony.sites.protocol import LAUNCHERS, Caller
from prony.sites.site import read_site
from prony.sites.slurm import Slurm
from prony_node.contract import Plan, RequestError, Trial, plugins
from prony_node.contract.typed import encode

STRANGER = 61234  # a user id that nobody has


@dataclass(frozen=True)
class Scene:
    """A root that everyone can write to, a program that leaves a mark when it is run, and this user's own site."""

    root: Path
    program: Path
    mark: Path
    site: Path

    def job(self, number: int = 0, **fields: Any) -> Job:
        """A job of this user, whose site runs the program in the place of Python."""
        site = read_site(self.site)
        run = BlockRun(Plan(run_id=f"gpt-tiny-{number}", trial=Trial("gpt-tiny", {"steps": 2}), energy=False))
        return replace(new_job(site, site.partitions[""], self.root, [run], time_s=60.0), **fields)

    def plant(self, uid: int = STRANGER, **fields: Any) -> Path:
        """A job as another user leaves it here: owned by them, and with the text of a site in it."""
        job = self.job(**{"state": "waiting", **fields})
        folder = self.root / ".jobs" / job.id
        folder.mkdir(parents=True)
        text = json.dumps({"kind": "local", "python": str(self.program)})
        document = {**encode(job.document()), "site": {"name": "here", "text": text, "found_as": str(self.site)}}
        (folder / "job.json").write_text(json.dumps({**document, **fields}), encoding="utf-8")
        for path in (folder.parent, folder, folder / "job.json"):
            os.chown(path, uid, uid)
        return folder

    def prony(self, *words: str) -> Any:
        return CliRunner().invoke(make_app(words[0]), [*words, "--runs", str(self.root)], env={"COLUMNS": "160"})


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.setattr("prony.sites.jobs.FILES_LAG_S", 0.1)
    root = tmp_path / "runs"
    root.mkdir()
    root.chmod(0o1777)
    mark, program, site = tmp_path / "mark", tmp_path / "program", tmp_path / "here.yaml"
    program.write_text(f"#!/bin/sh\necho run >>{mark}\n", encoding="utf-8")
    program.chmod(0o755)
    site.write_text(json.dumps({"kind": "local", "python": str(program)}), encoding="utf-8")
    return Scene(root, program, mark, site)


@pytest.fixture
def by_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can leave a file that another user owns")


def wait_for(scene: Scene, patience: int = 100) -> None:
    """Until the jobs of this user have ended."""
    for _ in range(patience):
        Jobs(scene.root, print).update()
        if all(job.barred or job.state == "ended" for job in load_jobs(scene.root)):
            return
        time.sleep(0.1)


@pytest.mark.usefixtures("by_root")
@pytest.mark.parametrize(
    "words", [("jobs",), ("collect",), ("collect", "--wait"), ("logs", "gpt-tiny-0"), ("cancel", "gpt-tiny-0")]
)
def test_a_job_that_another_user_left_runs_nothing(scene: Scene, words: tuple[str, ...]) -> None:
    folder = scene.plant()
    before = (folder / "job.json").read_bytes()
    scene.prony(*words)
    assert not scene.mark.exists()
    assert [path.name for path in folder.iterdir()] == ["job.json"]
    assert (folder / "job.json").read_bytes() == before


@pytest.mark.usefixtures("by_root")
@pytest.mark.parametrize("what", ["site check", "study run"])
def test_a_site_is_used_in_a_root_with_a_job_that_another_user_left(scene: Scene, what: str) -> None:
    folder = scene.plant()
    before = (folder / "job.json").read_bytes()
    study = scene.site.with_name("study.yaml")
    study.write_text("workloads: gpt-tiny\nsettings: {steps: 2}\n", encoding="utf-8")
    words = [str(scene.site)] if what == "site check" else [str(study), "--site", str(scene.site), "--time", "5m"]
    CliRunner().invoke(make_app(what.split()[0]), [*what.split(), *words, "--out", str(scene.root)])
    assert scene.mark.read_text() == "run\n", "this user's job alone was run"
    assert [path.name for path in folder.iterdir()] == ["job.json"]
    assert (folder / "job.json").read_bytes() == before
    assert not (scene.root / "gpt-tiny-0").exists()


@pytest.mark.usefixtures("by_root")
def test_a_job_of_this_user_is_submitted_beside_one_that_is_not(scene: Scene) -> None:
    scene.plant()
    job = scene.job(1)
    Jobs(scene.root, print).add([job])
    wait_for(scene)
    assert scene.mark.read_text() == "run\n", "this user's job alone was run"
    assert job.folder.parent.name == f".jobs-{os.geteuid()}", "what lies there nobody else can exchange"
    assert job.folder.parent.stat().st_mode & 0o022 == 0


@pytest.mark.usefixtures("by_root")
def test_the_jobs_of_others_are_listed_with_their_owner(scene: Scene) -> None:
    folder = scene.plant()
    listed = scene.prony("jobs")
    assert folder.name in listed.output
    assert str(STRANGER) in listed.output
    (document,) = json.loads(scene.prony("jobs", "--json").output)
    assert (document["id"], document["owner"]) == (folder.name, str(STRANGER))
    assert document["left_alone"] is not None
    assert (load(folder).site.python, load(folder).site.text) == ("python3", ""), "its site is a name and no more"


@pytest.mark.usefixtures("by_root")
def test_another_users_job_is_not_cancelled_settled_or_tried_again(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = json.dumps({"pid": os.getppid()})
    folder = scene.plant(state="submitted", handle=handle)
    monkeypatch.setitem(
        LAUNCHERS, "local", plugins.Plugin(plugins.LAUNCHERS, "local", "nowhere:Nothing")
    )  # whoever asks a launcher fails
    assert Jobs(scene.root, print).update().ended == []
    with pytest.raises(RequestError, match=f"is of user {STRANGER}"):
        Jobs(scene.root, print).cancel([load(folder)])
    with pytest.raises(RequestError, match="is left alone"):
        save_job(load(folder))
    assert not (scene.root / "gpt-tiny-0").exists()


@pytest.mark.parametrize("which", ["folder", "file", "all jobs"])
@pytest.mark.parametrize("bits", [0o020, 0o002])
def test_a_job_that_others_could_have_changed_is_not_submitted(scene: Scene, which: str, bits: int) -> None:
    job = save_job(scene.job())
    changed = {"folder": job.folder, "file": job.folder / "job.json", "all jobs": job.folder.parent}[which]
    changed.chmod(changed.stat().st_mode | bits)
    assert "other users may write to" in load(job.folder).barred
    if which != "all jobs":
        Jobs(scene.root, print).update()
        assert not scene.mark.exists()
    else:  # an earlier Prony made it with the umask of then; its owner takes it back
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("prony.sites.jobs.Jobs._submit_waiting", lambda *_: None)
            Jobs(scene.root, print).update()
        assert load(job.folder).barred == ""


@pytest.mark.parametrize("name", ["job.json", "the folder", "all jobs"])
def test_a_link_in_the_place_of_a_job_is_not_followed(scene: Scene, tmp_path: Path, name: str) -> None:
    """Its target is this user's own, and so would pass for a job of theirs."""
    job = save_job(scene.job())
    path = {"job.json": job.folder / "job.json", "the folder": job.folder, "all jobs": job.folder.parent}[name]
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert load_jobs(scene.root) == []
    scene.prony("jobs")
    assert not scene.mark.exists()


def test_a_pipe_in_the_place_of_a_job_keeps_nobody_waiting(scene: Scene) -> None:
    job = save_job(scene.job(state="ended"))
    (job.folder / "job.json").unlink()
    for name in ("job.json", "pruned", "job.log", "run-000.log"):
        os.mkfifo(job.folder / name)
    assert load_jobs(scene.root) == []
    (job.folder / "job.json").unlink()
    save_job(job)
    assert "0 of 1 recorded" in scene.prony("jobs").output
    assert scene.prony("logs", job.id).exit_code == 0


def test_a_job_says_nothing_of_where_its_files_lie(scene: Scene, tmp_path: Path) -> None:
    job = save_job(scene.job())
    document = json.loads((job.folder / "job.json").read_text())
    for change in ({"id": "../../elsewhere"}, {"runs": [{**document["runs"][0], "unless_too_large": ["../x"]}]}):
        (job.folder / "job.json").write_text(json.dumps({**document, **change}))
        with pytest.raises(RequestError, match="is not a complete job"):
            load(job.folder)


def test_the_site_is_this_users_own_and_not_what_a_job_says(scene: Scene, tmp_path: Path) -> None:
    job = save_job(scene.job())
    evil = json.dumps({"kind": "local", "python": "/evil", "environment": {"variables": {"LD_PRELOAD": "/evil.so"}}})
    document = json.loads((job.folder / "job.json").read_text())
    document["site"] |= {"text": evil, "python": "/evil"}
    (job.folder / "job.json").write_text(json.dumps(document))
    assert load(job.folder).site == read_site(scene.site)
    assert "text" not in encode(job.document())["site"]


def test_a_job_whose_site_is_gone_is_listed_and_not_lost(scene: Scene) -> None:
    job = save_job(scene.job())
    scene.site.unlink()
    Jobs(scene.root, print).update()
    assert "cannot be read" in load(job.folder).barred
    assert f"{job.id} is left alone" in " ".join(scene.prony("jobs").output.split())
    scene.site.write_text("kind: slurm\npartition: gpu\n", encoding="utf-8")
    assert "was of kind local" in load(job.folder).barred


def _of_a_stranger(site: Path) -> None:
    os.chown(site, STRANGER, STRANGER)


def _open_to_a_group(site: Path) -> None:
    os.chown(site, -1, 61299)  # a group that is not the user's own
    site.chmod(0o664)


def _pipe(site: Path) -> None:
    site.unlink()
    os.mkfifo(site)


@pytest.mark.usefixtures("by_root")
@pytest.mark.parametrize("change", [_of_a_stranger, _open_to_a_group, _pipe])
def test_a_site_file_that_others_may_have_written_is_not_used_because_a_job_names_it(
    scene: Scene, change: Callable[[Path], None]
) -> None:
    """A job that came with an archive named a site file of its maker's."""
    job, later = save_job(scene.job()), scene.job(1)
    change(scene.site)
    Jobs(scene.root, print).update()
    assert not scene.mark.exists()
    assert re.search("others can write to it|no regular file", load(job.folder).barred)
    with pytest.raises(RequestError, match=r"use a copy of your own|no regular file"):
        Jobs(scene.root, print).add([later])
    assert not later.folder.exists()


@pytest.mark.parametrize("name", ["prony-evil", "gpt-tiny-20260101T000000-abcdef", "prony-20260101T000000-abcdef.x"])
def test_a_folder_with_a_name_that_prony_gives_no_job_is_none(scene: Scene, name: str) -> None:
    job = save_job(scene.job())
    folder = job.folder.rename(job.folder.with_name(name))
    (folder / "job.json").write_text(json.dumps({**encode(job.document()), "id": name}))
    assert load_jobs(scene.root) == []
    Jobs(scene.root, print).update()
    assert not scene.mark.exists()


@pytest.mark.usefixtures("by_root")
def test_a_folder_that_another_user_made_for_our_jobs_is_not_used(scene: Scene) -> None:
    for name in (".jobs", f".jobs-{os.geteuid()}"):
        (scene.root / name).mkdir(mode=0o777)
        os.chown(scene.root / name, STRANGER, STRANGER)
    with pytest.raises(RequestError, match="another user has made"):
        scene.job()
    assert scene.prony("jobs").exit_code == 0


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o077])
def test_a_job_is_writable_by_its_owner_alone_whatever_the_umask(scene: Scene, umask: int) -> None:
    before = os.umask(umask)
    try:
        job = scene.job()
        Jobs(scene.root, print).add([job])
        wait_for(scene)
    finally:
        os.umask(before)
    made = [job.folder.parent, job.folder, *(job.folder / name for name in ("job.json", "job.sh", "node.zip"))]
    assert [path.name for path in made if path.stat().st_mode & (0o022 | umask)] == []
    assert scene.mark.read_text() == "run\n", "and its own script does not refuse it"


@pytest.mark.usefixtures("by_root")
@pytest.mark.parametrize(
    "wrong",
    [
        {"time_s": 10**400}, {"outcome": {"state": 1}}, {"outcome": [1]}, {"handle": [1], "kind": "slurm"},
        {"runs": [{"attempt": 1e999}]}, {"settings": {"nodes": "x"}}, {"settings": {"devices": [1]}}, {"node": {}},
        {"ask": [[]] * 3_000_000},
    ],
    ids=lambda wrong: str(wrong)[:40],
)  # fmt: skip
def test_a_job_that_makes_no_sense_hides_no_other(scene: Scene, wrong: dict[str, Any]) -> None:
    """One such file of a stranger's ended `prony jobs` of everybody with a traceback."""
    own = save_job(scene.job(1, state="ended"))
    folder = scene.plant()
    document = json.loads((folder / "job.json").read_text())
    document["site"].pop("text")
    (run,) = document["runs"]
    run["plan"]["trial"]["settings"] |= wrong.pop("settings", {})
    run |= wrong.pop("runs", [{}])[0]
    (folder / "job.json").write_text(json.dumps({**document, **wrong}))
    for words in (("jobs", "--all"), ("jobs", "--all", "--json"), ("logs", own.id), ("collect",)):
        done = scene.prony(*words)
        assert done.exit_code == 0, done.output
    assert own.id in scene.prony("jobs", "--all").output


def _exchange_folder(job: Job) -> None:
    """What somebody does who may write to the root, and waits until the job begins."""
    job.folder.parent.rename(job.root / "old")
    job.folder.mkdir(parents=True)
    for file in (job.root / "old" / job.id).iterdir():
        (job.folder / file.name).write_bytes(file.read_bytes())
    for path in (job.folder, *job.folder.iterdir()):
        os.chown(path, STRANGER, STRANGER)


def _open_folder_up(job: Job) -> None:
    job.folder.chmod(0o775)


def _open_program_up(job: Job) -> None:
    (job.folder / "node.zip").chmod(0o666)


def _link_program(job: Job) -> None:
    (job.folder / "node.zip").rename(job.root / "node.zip")
    (job.folder / "node.zip").symlink_to(job.root / "node.zip")


@pytest.mark.usefixtures("by_root")
@pytest.mark.parametrize("exchange", [_exchange_folder, _open_folder_up, _open_program_up, _link_program])
def test_a_node_runs_nothing_that_others_put_in_the_place_of_the_job(
    scene: Scene, exchange: Callable[[Job], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The script was handed to the scheduler; the folder that it works in is exchanged before it begins."""
    job = scene.job()
    monkeypatch.setattr("prony.sites.local.LocalJobs.submit", lambda *_: json.dumps({"pid": 0}))
    Jobs(scene.root, print).add([job])
    script = (job.folder / "job.sh").read_text()
    exchange(job)
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert "nothing is run: others may write to" in done.stderr
    assert not scene.mark.exists()


def _exchange_script(scene: Scene, job: Job) -> None:
    _exchange_folder(job)
    (job.folder / "job.sh").write_text(f"echo stolen >>{scene.mark}\n")


@pytest.mark.usefixtures("by_root")
@pytest.mark.parametrize("late", [False, True])
def test_a_script_that_others_put_in_the_place_of_a_job_is_not_started(
    scene: Scene, late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner of a root can rename what others have there: once the script is written, or once it is opened."""
    job, launcher = scene.job(), LocalJobs(print)

    def submit(*given: Any) -> str:
        _exchange_script(scene, job)
        return LocalJobs.submit(launcher, *given)

    def start(argv: Sequence[str], **options: Any) -> Any:
        monkeypatch.undo()
        _exchange_script(scene, job)
        return subprocess.Popen(argv, **options)

    if late:
        monkeypatch.setattr("prony.sites.local.subprocess.Popen", start)
    else:
        monkeypatch.setattr(launcher, "submit", submit)
    with contextlib.suppress(RequestError):
        Jobs(scene.root, print, lambda *_: launcher).add([job])
    time.sleep(2.0)
    assert not scene.mark.exists()


@pytest.mark.usefixtures("by_root")
def test_a_script_that_others_put_in_the_place_of_a_job_is_not_given_to_slurm(scene: Scene) -> None:
    scene.site.write_text("kind: slurm\npartition: gpu\n", encoding="utf-8")
    site = read_site(scene.site)
    job = new_job(site, site.partitions["gpu"], scene.root, ask=["doctor"], time_s=60.0)
    given: list[str] = []

    def sbatch(argv: Sequence[str], patience_s: float) -> str:
        _exchange_script(scene, job)
        given.append(Path(argv[-1]).read_text())
        return "1\n"

    with contextlib.suppress(RequestError):
        Jobs(scene.root, print, lambda *_: Slurm(print, Caller(sbatch), scene.root.parent)).add([job])
    (script,) = given
    assert "stolen" not in script
    assert f"--job-name={job.id}" in script


def test_a_run_that_others_made_a_pipe_of_keeps_no_job_waiting(scene: Scene) -> None:
    first, second = scene.job(0).runs[0], scene.job(1).runs[0]
    job = replace(scene.job(), runs=(first, replace(second, unless_too_large=(first.plan.run_id,))))
    (scene.root / first.plan.run_id).mkdir()
    os.mkfifo(scene.root / first.plan.run_id / "record.json")
    Jobs(scene.root, print).add([job])
    for _ in range(100):
        if (job.folder / "ended").exists():
            break
        time.sleep(0.1)
    assert scene.mark.read_text() == "run\nrun\n"


def test_two_users_submit_to_one_root_and_neither_touches_the_others_job(scene: Scene, stranger: Any) -> None:
    own = scene.job(1)
    Jobs(scene.root, print).add([own])
    wait_for(scene)
    scene.mark.unlink()
    site = stranger.home / "site.yaml"
    site.write_text(json.dumps({"kind": "local", "python": "/bin/true"}), encoding="utf-8")
    words = ["run", "gpt-tiny", "steps=2", "device=cpu", "--site", site, "--time", "5m", "--detach"]
    there = {"PRONY_RUNS": str(scene.root)}
    done = stranger.prony(*words, environment=there)
    assert done.returncode == 0, done.stderr
    listed = {job.place: job for job in load_jobs(scene.root)}
    assert set(listed) == {".jobs", f".jobs-{stranger.uid}"}
    assert [bool(listed[place].barred) for place in (".jobs", f".jobs-{stranger.uid}")] == [False, True]
    assert not scene.mark.exists()
    assert own.id in stranger.prony("jobs", environment=there).stdout
    assert load(own.folder).state == "ended"


def test_jobs_of_ones_own_are_listed_and_ended_in_a_root_that_became_open(scene: Scene) -> None:
    """Nothing is run for that, and a job that runs must have an end."""
    scene.program.write_text(f"#!/bin/sh\necho run >>{scene.mark}\nexec sleep 300\n", encoding="utf-8")
    job = scene.job()
    Jobs(scene.root, print).add([job])
    scene.root.chmod(0o777)
    try:
        listed = scene.prony("jobs")
        assert (listed.exit_code, job.id in listed.output) == (0, True), listed.output
        for words in (("collect",), ("logs", "gpt-tiny-0"), ("cancel", "gpt-tiny-0")):
            done = scene.prony(*words)
            assert done.exit_code == 0, done.output
    finally:
        scene.root.chmod(0o1777)
        Jobs(scene.root, print).cancel([job])
    wait_for(scene)
    assert load(job.folder).state == "ended"


def test_a_job_that_waits_is_not_submitted_while_its_root_is_open(scene: Scene) -> None:
    job = save_job(scene.job())
    scene.root.chmod(0o777)
    said: list[str] = []
    Jobs(scene.root, said.append).update()
    assert [line for line in said if "any user can replace runs" in line], said
    waits = load(job.folder)
    assert (waits.state, "any user can replace runs" in waits.note) == ("waiting", True)
    assert not scene.mark.exists()
    scene.root.chmod(0o755)
    Jobs(scene.root, print).update()
    wait_for(scene)
    assert scene.mark.read_text() == "run\n"


def test_nothing_is_submitted_in_an_open_root(scene: Scene) -> None:
    scene.root.chmod(0o777)
    with pytest.raises(RequestError, match="any user can replace runs"):
        Jobs(scene.root, print).add([scene.job()])
    assert not scene.mark.exists()
    assert not list(scene.root.iterdir())


@pytest.mark.usefixtures("by_root")
def test_a_place_for_jobs_that_others_have_taken_is_one_refusal(scene: Scene) -> None:
    for name in (".jobs", f".jobs-{os.geteuid()}"):
        (scene.root / name).mkdir()
        os.chown(scene.root / name, STRANGER, STRANGER)
    with pytest.raises(RequestError, match=r"another user has made .*; have it removed, or name another folder"):
        scene.job()
    assert scene.prony("jobs").exit_code == 0
