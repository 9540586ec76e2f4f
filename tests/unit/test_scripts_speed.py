"""The scripts of a job on a device: wrong words start nothing; rounds, time limit, resuming and packing."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType

import pytest

from prony.store.archive import pack
from prony_node.contract.trial import Stop, Trial

ROOT = Path(__file__).parents[2]


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    monkeypatch.setattr(sys, "path", list(sys.path))


@pytest.fixture
def results(scripts: None, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    import device_results

    monkeypatch.setattr(device_results, "run", lambda *_: pytest.fail("something was started"))
    return device_results


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["sped", "OUT"], "did you mean 'speed'"),
        (["speed", "OUT", "--only", "resnet51"], "no trial of speed has resnet51"),
        (["speed", "OUT", "--part", "4/3"], "--part 4/3 is no part"),
        (["speed", "OUT", "size"], "size is no setting=value"),
        (["speed", "OUT", "batchsize=2"], "did you mean 'batch_size'"),
        (["speed", "OUT", "mode=train", "--only", "decode"], "phase has no meaning with mode=train"),
    ],
)
def test_a_job_with_a_wrong_word_starts_nothing(
    results: ModuleType, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert results.main(words) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("path", sorted((ROOT / "scripts/trials").glob("*.txt")), ids=lambda path: path.name)
def test_a_list_of_trials_has_no_word_that_is_refused_and_none_twice(results: ModuleType, path: Path) -> None:
    trials = results.list_trials(str(path))
    assert len(trials) == len({trial.hash for trial in trials}) > 1


def test_a_wrong_line_of_a_list_of_trials_is_named(
    results: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "two.txt"
    path.write_text("# two\n\nresnet50 batch_size=2\nresnet50 batch_size=two  # no number\n")
    assert results.main([str(path), "OUT"]) == 2
    assert f"{path}:4: batch_size=two" in capsys.readouterr().err
    assert results.main([str(tmp_path / "none.txt"), "OUT"]) == 2
    assert "No such file" in capsys.readouterr().err


def test_a_setting_that_only_the_chosen_trials_have_is_taken(results: ModuleType) -> None:
    options = results.read_options(["speed", "OUT", "--only", "gpt-117m", "sequence=64"])
    (trial,) = results.trials_of(options)
    assert trial.settings["sequence"] == 64


def test_a_trial_that_fails_says_why_on_its_line(
    scripts: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import device_results

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))  # its run folders stay
    out = tmp_path / "out"
    words = ["speed", str(out), "--only", "gpt-117m", "size=tiny", "device=mps"]
    assert device_results.main(words) == 1
    assert "device=mps is not here" in capsys.readouterr().out
    assert [json.loads(path.read_text())["status"] for path in out.glob("*/record.json")] == ["failed"]


class Made:
    """Stands in for a run: notes what was asked for, and leaves a record without measuring."""

    def __init__(self, seconds: float = 10.0) -> None:
        self.seconds, self.now_s = seconds, 0.0
        self.asked: list[tuple[str, int]] = []
        self.stops: set[Stop] = set()

    def monotonic(self) -> float:
        return self.now_s

    def run(self, trial: Trial, runs: Path, stop: Stop, repeat: int = 0, energy: bool = True) -> str:
        self.now_s += self.seconds
        if "steps" in trial.settings:
            return ""
        self.asked.append((trial.workload, repeat))
        self.stops.add(stop)
        folder = runs / f"{trial.workload}-{len(list(runs.glob('*')))}"
        folder.mkdir(parents=True)
        document = {"trial": trial.to_json(), "status": "ok"}
        (folder / "record.json").write_text(json.dumps(document))
        (folder / "steps.csv").write_text("1,1\n")
        return ""


@pytest.fixture
def made(results: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Made:
    stand_in = Made()
    monkeypatch.setattr(results, "run", stand_in.run)
    monkeypatch.setattr(results, "time", stand_in)
    return stand_in


@pytest.fixture
def two(tmp_path: Path) -> str:
    path = tmp_path / "two.txt"
    path.write_text("resnet50 batch_size=2\nvit-l batch_size=2\n")
    return str(path)


def test_repeats_are_interleaved_in_rounds(results: ModuleType, made: Made, two: str, tmp_path: Path) -> None:
    words = [
        two,
        str(tmp_path / "runs"),
        "--repeats",
        "3",
        "--min-time",
        "20s",
        "--max-time",
        "45s",
        "--warm-time",
        "6s",
    ]
    assert results.main(words) == 0
    assert made.asked == [(name, repeat) for repeat in range(3) for name in ("resnet50", "vit-l")]
    assert made.stops == {Stop(min_time_s=20.0, max_time_s=45.0, warm_time_s=6.0)}
    assert results.main(words) == 0  # everything is there
    assert len(made.asked) == 6


def test_a_job_ends_in_time_and_is_resumed(
    results: ModuleType, made: Made, two: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made.seconds = 40.0
    words = [two, str(tmp_path / "runs"), "--repeats", "2", "--until", "150"]
    assert results.main(words) == 0
    assert made.asked == [("resnet50", 0), ("vit-l", 0), ("resnet50", 1)]
    assert made.now_s <= 150
    assert "1 runs are missing" in capsys.readouterr().out
    made.now_s = 0.0
    assert results.main(words) == 0
    assert made.asked[3:] == [("vit-l", 1)]


def test_what_was_made_is_packed_with_its_step_series(
    results: ModuleType, made: Made, two: str, tmp_path: Path
) -> None:
    import tarfile

    archive = tmp_path / "out" / "headline-1.tar.gz"
    assert results.main([two, str(tmp_path / "runs"), "--warm", "2", "--pack", str(archive)]) == 0
    with tarfile.open(archive) as tar:
        names = tar.getnames()
    assert len(names) == 4
    assert sum(name.endswith("/steps.csv") for name in names) == 2
    content = archive.read_bytes()
    archive.unlink()
    assert results.main([two, str(tmp_path / "runs"), "--pack", str(archive)]) == 0  # nothing is missing
    assert archive.read_bytes() == content


def test_a_trial_is_compiled_once_and_only_as_many_as_fit_into_memory(
    results: ModuleType, made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "four.txt"
    path.write_text("".join(f"{name} batch_size=2\n" for name in ("resnet50", "vit-l", "swin-t", "swin-b")))
    at_once, most, warmed = [0], [0], []
    lock = threading.Lock()

    def warm(trial: Trial, place: Path) -> str:
        with lock:
            at_once[0] += 1
            most[0] = max(most[0], at_once[0])
            warmed.append(trial.workload)
        barrier.wait(0.2) if not barrier.broken else None
        with lock:
            at_once[0] -= 1
        return ""

    barrier = Barrier(3)
    monkeypatch.setattr(results, "warm", warm)
    monkeypatch.setattr(results, "cost_of", lambda *_: results.Cost(memory_gib=50.0))
    words = [str(path), str(tmp_path / "runs"), "--warm", "4"]
    assert results.main(words) == 0
    assert (sorted(warmed), most[0]) == (["resnet50", "swin-b", "swin-t", "vit-l"], 2)
    assert results.main([*words, "--repeats", "2"]) == 0
    assert len(warmed) == 4


class Barrier(threading.Barrier):
    """Holds those that came until there are enough or time is over; that it breaks is what is expected."""

    def wait(self, timeout: float | None = None) -> int:
        try:
            return super().wait(timeout)
        except threading.BrokenBarrierError:
            return -1


def test_a_forecast_adds_up_and_starts_nothing(
    results: ModuleType, two: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "cost_of", lambda *_: results.Cost(cold_s=100.0, warm_s=13.0))
    words = [two, str(tmp_path / "runs"), "--repeats", "3", "--warm", "1", "--min-time", "20s", "--max-time", "45s",
             "--warm-time", "6s", "--dry-run"]  # fmt: skip
    assert results.main(words) == 0
    said = capsys.readouterr().out
    assert "to compile, 1 at once: about 200 s" in said
    assert "6 runs: about 258 s" in said  # 1 + 13 + 6 + 1.15 * 20 each
    assert "together: about 7.6 min" in said
    assert not (tmp_path / "runs").exists()


def test_what_a_trial_takes_is_known_from_its_last_runs(results: ModuleType) -> None:
    from results_records import read_lines

    known = read_lines(ROOT / "results" / "records.jsonl")
    for trial in results.list_trials(str(ROOT / "scripts/trials/headline.txt")):
        cost = results.cost_of(trial, known)
        assert 5 < cost.warm_s < 30, trial
        assert 20 < cost.cold_s <= 100, trial
    assert results.cost_of(results.parse_trial("gpt-tiny", ["batch_size=3"]), []) == results.Cost()


def test_the_controller_of_a_job_needs_no_database() -> None:
    """Machines with a device often have torch and little else."""
    code = (
        "import sys; sys.modules['sqlalchemy'] = None; sys.path.insert(0, 'scripts'); import device_results;"
        "sys.exit(device_results.main(['scripts/trials/headline.txt', 'none', '--dry-run']))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_tables_of_a_study_go_to_its_place(
    scripts: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import studies_page

    from prony.engine import published

    monkeypatch.setattr(published, "ask_node", lambda *_, **__: {"machine": "here"})
    monkeypatch.setattr(published, "impossible_here", lambda *_: {})
    monkeypatch.setenv("PRONY_STORE", "postgresql://nobody@127.0.0.1:9/none")
    page = tmp_path / "page.md"
    page.write_text("by hand\n<!-- caraml -->\nold\n<!-- /caraml -->\nby hand too\n")
    words = ["--results", str(tmp_path), "--page", str(page)]
    pack_one(tmp_path / "studies-caraml.tar.gz")
    assert studies_page.main(words) == 0
    text = page.read_text()
    assert text.startswith("by hand\n<!-- caraml -->\nOurs: ")
    assert text.endswith("\n`prony study show caraml` prints them all.\n<!-- /caraml -->\nby hand too\n")
    figures = tmp_path / "figures"
    figures.mkdir()
    for name in ("caraml-no-longer-drawn.svg", "of-a-person.svg"):
        (figures / name).write_text("<svg/>")
    assert studies_page.main([*words, "--figures", str(figures)]) == 0
    assert [path.name for path in figures.iterdir()] == ["of-a-person.svg"], "this study's alone, with nothing of ours"
    assert "\nold\n" not in text
    pack_one(tmp_path / "studies-caramel.tar.gz")
    assert studies_page.main(words) == 2
    said = capsys.readouterr().err
    assert "did you mean 'caraml'" in said
    assert "postgresql" not in said


def pack_one(archive: Path) -> None:
    """An archive with one run, of no study."""
    folder = next((ROOT / "tests" / "replay" / "records").glob("*d00001"))
    with archive.open("wb") as file:
        pack([folder], file)
