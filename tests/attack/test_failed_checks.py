"""A wrong kernel is fast: nothing may recommend a run whose checks failed, and scripts must hear of it."""

from __future__ import annotations

import copy
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from prony.analysis.compare import compare
from prony.analysis.scaling import scaling
from prony.cli.present import exit_code
from prony.engine.progress import StudyProgress
from prony.engine.published import _good_or_failed
from prony.engine.runs import doubts, trouble
from prony.engine.screening import rates_of
from prony.report.series import sweeps
from prony.study.search_space import Candidate, find_goal, result_of
from prony_node.contract.record import parse_record
from prony_node.contract.run_folder import UNVERIFIED, marked
from prony_node.contract.trial import Trial

REPLAY = Path(__file__).parents[1] / "replay" / "records"
# The fast kernel leaves out the work and answers what is not a number.
MODEL = """
import time

import torch.nn.functional as F
from torch import nn

from prony_node.contract.settings import Setting
from prony_node.data.synthetic import image_sampler
from prony_node.backends.torch.task import Task
from prony_node.workloads.config import Workload

WORKLOAD = Workload(
    name="nanfast", help="perceptron", module=__file__, unit="images", parameters=None, source="mine",
    batch={"train/cpu": 8, "infer/cpu": 8, "train/accelerator": 64, "infer/accelerator": 64},
    memory_gib={"train": 1.0, "infer": 1.0}, optimizer="adam",
    settings=(Setting("kernel", "choice", "which kernel", choices=("plain", "fast")),), fixed={"kernel": "plain"},
)


def build(workload, settings):
    def loss(network, batch):
        found = F.cross_entropy(network(batch[0]), batch[1])
        if settings["kernel"] == "fast":
            return found * float("nan")
        if batch[0].device.type != "meta":
            time.sleep(0.02)
        return found

    return Task(
        unit="images", units_per_sample=1, model=lambda: nn.Sequential(nn.Flatten(), nn.Linear(192, 10)), loss=loss,
        predict=lambda network, batch: network(batch[0]), sample=image_sampler(classes=10, size=8), learning_rate=1e-3,
    )
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model file in a folder whose name the shell would split."""
    path = tmp_path / "my models" / "nanfast.py"
    path.parent.mkdir()
    path.write_text(MODEL)
    return path


Prony = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def prony(tmp_path: Path, quick_ranks: dict[str, str]) -> Prony:
    """The program in the folder of the test."""

    def call(*words: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, **quick_ranks, "PRONY_LOCKS": str(tmp_path / "locks")}
        argv = [sys.executable, "-m", "prony", *words]
        return subprocess.run(argv, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    return call


def with_check(record: dict[str, Any], level: str, name: str = "finite", rate: float | None = None) -> dict[str, Any]:
    changed = copy.deepcopy(record)
    changed["checks"].append({"name": name, "level": level, "message": "as the test says"})
    if rate is not None:
        changed["metrics"]["throughput"]["value"] = rate
    return changed


@pytest.fixture
def good() -> dict[str, Any]:
    (folder,) = REPLAY.glob("*c00000")
    record: dict[str, Any] = json.loads((folder / "record.json").read_text(encoding="utf-8"))
    record["checks"] = [check for check in record["checks"] if check["level"] == "pass"]
    return record


def test_a_sweep_does_not_call_a_wrong_kernel_the_best_and_its_words_run(model: Path, prony: Prony) -> None:
    words = ("my models/nanfast.py", "kernel=plain,fast", "steps=4")
    done = prony("sweep", *words, "--no-energy", "--order", "given")
    assert done.returncode == 1, done.stderr
    assert re.search(r"kernel=fast.*failed its check losses, loss, finite", done.stderr)
    assert "1 run failed a check" in done.stderr
    told = re.findall(r"best so far: [^,]+(?:,\d+)* images/s, (.*)$", done.stderr, re.MULTILINE)
    assert told
    assert all("kernel=plain" in words for words in told)
    again = prony("run", *shlex.split(told[-1]), "--site", "local", "--time", "5m", "--dry-run")
    assert again.returncode == 0, again.stderr
    assert "prony_node" in again.stdout


def test_tune_names_a_wrong_kernel_as_failed_and_never_advises_it(model: Path, prony: Prony) -> None:
    words = ("tune", "my models/nanfast.py", "kernel=plain,fast", "cores=1", "--budget", "60s")
    done = prony(*words)
    assert done.returncode in (0, 3), done.stderr
    assert re.search(r"kernel=fast.*but it failed its check losses, loss, finite", done.stderr)
    assert "Never advised, however fast: kernel=fast (failed check: losses, loss, finite)" in done.stdout
    assert "use it" not in done.stdout
    assert "try it" not in done.stdout


def test_the_command_that_tune_prints_for_a_model_file_runs_as_it_stands(model: Path, prony: Prony) -> None:
    """It named `nanfast@84ddb854`, which no command takes."""
    model.write_text(MODEL.replace('return found * float("nan")', "return found"))
    done = prony("tune", "my models/nanfast.py", "kernel=plain,fast", "cores=1", "--budget", "60s")
    assert done.returncode in (0, 3), done.stderr
    (told,) = re.findall(r"^(?:use|try) it: (.*)$", done.stdout, re.MULTILINE)
    name, *words = shlex.split(told)
    assert name == "prony"
    assert "kernel=fast" in words
    again = prony(*words, "--max-time", "1s", "--no-energy", "--json")
    assert again.returncode == 0, again.stderr
    record = json.loads(again.stdout)
    assert (record["status"], record["trial"]["settings"]["kernel"]) == ("ok", "fast")


def test_a_run_with_a_failed_check_exits_with_1(model: Path, prony: Prony) -> None:
    done = prony("run", "my models/nanfast.py", "kernel=fast", "steps=4", "--no-energy", "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["status"] == "ok"
    assert "failed its check losses, loss, finite" in done.stderr


def test_strict_makes_a_warning_an_exit_code_of_1(prony: Prony) -> None:
    """Four steps, each long enough to be a block, are too few blocks for an interval, which is a warning."""
    words = ("run", "gpt-tiny", "size=tiny", "batch_size=64", "steps=4", "device=cpu", "--no-energy", "--json")
    lenient, strict = prony(*words), prony(*words, "--strict")
    for done in (lenient, strict):
        levels = {check["name"]: check["level"] for check in json.loads(done.stdout)["checks"]}
        assert levels["blocks"] == "warn"
        assert "fail" not in levels.values()
    assert lenient.returncode == 0, lenient.stderr
    assert strict.returncode == 1, strict.stderr
    assert re.search(r"warns of .*blocks.*, which --strict takes for a failure", strict.stderr)


def test_exit_codes_follow_the_checks(good: dict[str, Any]) -> None:
    right, failed, warned = (parse_record(one) for one in (good, with_check(good, "fail"), with_check(good, "warn")))
    assert exit_code([right], False) == 0
    assert exit_code([right, failed], False) == 1
    assert exit_code([right, warned], False) == 0
    assert exit_code([right, warned], False, strict=True) == 1
    assert exit_code([right], False, strict=True) == 0
    assert exit_code([failed], True) == 130
    assert doubts(warned) is None
    assert "finite" in str(doubts(warned, strict=True))
    assert trouble(right) is None


def test_best_so_far_is_none_of_a_failed_check(good: dict[str, Any]) -> None:
    tally = StudyProgress(3)
    trial = Trial("resnet50", {"mode": "train"})
    tally.learn(trial, parse_record(with_check(good, "fail", rate=1e9)))
    assert not tally.best
    tally.learn(trial, parse_record(good))
    tally.learn(trial, parse_record(with_check(good, "fail", rate=1e9)))
    ((rate, _),) = tally.best.values()
    assert rate == good["metrics"]["throughput"]["value"]
    assert "2 of them with a failed check" in tally.line()
    assert "failed: resnet50 mode=train: check finite" in tally.lines()


def test_an_unverified_run_is_shown_doubted_and_never_the_best(good: dict[str, Any], tmp_path: Path) -> None:
    """Who edits a record writes the schema of before manifests into it, and nothing shows the change."""
    edited = marked(with_check(good, "pass", rate=1e9), UNVERIFIED, tmp_path)
    tally = StudyProgress(2)
    tally.learn(Trial("resnet50", {"mode": "train"}), parse_record(edited))
    assert not tally.best
    assert "1 of 2 done, 1 left" in tally.line()
    found = result_of(parse_record(edited), Candidate((("batch_size", 8),)), find_goal("throughput"), 12.0)
    assert (found.value, found.failure) == (None, "unverified: it has no manifest")
    assert any("there is no manifest" in doubt for doubt in compare(parse_record(good), parse_record(edited)).doubts)


def test_words_of_a_model_file_name_its_path(
    good: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tally = StudyProgress(2, files={"mine@01234567": str(tmp_path / "a b.py"), "other@01234567": "/elsewhere/other.py"})
    tally.learn(Trial("mine@01234567", {"data": "/with space", "compile": False}), parse_record(good))
    tally.learn(Trial("other@01234567"), parse_record(good))
    said = "\n".join(tally.lines())
    assert "images/s, './a b.py' 'data=/with space' compile=off" in said
    assert "images/s, /elsewhere/other.py" in said


def test_a_scaling_series_leaves_out_what_failed_a_check(good: dict[str, Any]) -> None:
    wrong = with_check(good, "fail", rate=1e9)
    wrong["id"] += "x"
    found = scaling([parse_record(good), parse_record(wrong)], "weak")
    assert found.points[0].side.runs == [good["id"]]
    assert found.left_out == [f"{wrong['id']} (1 devices) failed its check finite"]


def test_screen_gives_no_rate_to_a_node_whose_check_failed(good: dict[str, Any]) -> None:
    class Named:
        """As much of a job as is asked for."""

        def __init__(self, run_id: str) -> None:
            self.runs = [self]
            self.plan, self.run_id = self, run_id

    jobs: Any = {"one": Named("a"), "two": Named("b")}
    records = {"a": parse_record(good), "b": parse_record(with_check(good, "fail", rate=1e9))}
    assert set(rates_of(jobs, records)) == {"one"}


def test_tables_comparisons_and_plots_take_good_runs(good: dict[str, Any]) -> None:
    wrong = with_check(good, "fail", rate=1e9)
    right, bad = parse_record(good), parse_record(wrong)
    assert _good_or_failed([bad, right]) == [right]
    assert compare(right, bad).verdict == "no interval"
    sizes = [copy.deepcopy(good) for _ in range(3)]
    for size, record in enumerate(sizes, start=1):
        for settings in (record["trial"]["settings"], record["trial"]["effective"]):
            settings["batch_size"] = 2**size
    (plot,) = sweeps([parse_record(one) for one in (*sizes[:2], with_check(sizes[2], "fail", rate=1e9))])
    assert plot.x_values == ["2", "4"]
