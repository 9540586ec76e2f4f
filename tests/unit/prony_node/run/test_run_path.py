"""The way from a rank to the measured loop is short, and a rank imports the code of its own workload alone."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import FrameType

import pytest

from prony_node import workloads
from prony_node.contract import Plan, Trial, files
from prony_node.run import measuring, rank

PLAN = Plan(run_id="x", trial=Trial("gpt-tiny", {"size": "tiny", "device": "cpu", "batch_size": 2, "steps": 2}))
MOST_CALLS = 6
NODE = Path(measuring.__file__).parents[1]
ARCHITECTURE = NODE.parents[1] / "ARCHITECTURE.md"


class Reached(Exception):
    """The measured loop was called."""


def test_at_most_six_calls_lead_from_the_rank_to_the_measured_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And they are those that ARCHITECTURE.md draws, each in the file that it names."""
    chain: list[tuple[str, str]] = []

    def loop(*given: object, **named: object) -> None:
        frame: FrameType | None = sys._getframe().f_back
        while frame is not None:
            chain.append((Path(frame.f_code.co_filename).relative_to(NODE).as_posix(), frame.f_code.co_name))
            if frame.f_code is rank.main.__code__:
                raise Reached
            frame = frame.f_back
        pytest.fail("the run did not begin in the rank's main")

    monkeypatch.setattr(measuring, "measured_loop", loop)
    (tmp_path / files.PLAN).write_text(json.dumps(PLAN.to_json()))
    assert rank.main([str(tmp_path / files.PLAN), str(tmp_path)]) == 1
    assert json.loads((tmp_path / files.RESULT).read_text())["failure"]["message"].startswith("Reached")
    chain.reverse()
    assert len(chain) <= MOST_CALLS, chain  # each makes the next call, the last one that of the loop
    drawn = ARCHITECTURE.read_text(encoding="utf-8")
    drawn = drawn[drawn.index("run/rank.py main ->") : drawn.index(" measured_loop")]
    assert drawn.split() == _drawing(chain).split()


def _drawing(chain: list[tuple[str, str]]) -> str:
    """The chain as the page draws it: a file is named where it changes."""
    words, before = [], ""
    for file, function in chain:
        words.append(f"{file} {function}" if file != before else function)
        before = file
    return " -> ".join([*words, "measure/loop.py"])


# What of prony_node/data is for every kind of sample: no file of images, boxes or masks.
DATA_OF_TOKENS = {
    "batches", "dataset", "generated_folder", "source", "synthetic", "texts",
}  # fmt: skip
MODULES = """
import json, sys
from prony_node.run import rank
code = rank.main(sys.argv[1:])
print(json.dumps(sorted(sys.modules)))
sys.exit(code)
"""


@pytest.mark.parametrize("data", ["device", "text"])
def test_the_rank_of_a_token_workload_imports_no_other_model_or_data_code(tmp_path: Path, data: str) -> None:
    """Configurations of all families and kinds of data are tables; models and readers are imported where used."""
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "of.txt").write_text("Words enough for a few samples of each split. " * 400)
    where = data if data == "device" else str(tmp_path / data)
    plan = replace(PLAN, trial=Trial("gpt-tiny", {**PLAN.trial.settings, "data": where}))
    (tmp_path / files.PLAN).write_text(json.dumps(plan.to_json()))
    argv = [sys.executable, "-c", MODULES, str(tmp_path / files.PLAN), str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    modules = json.loads(done.stdout.splitlines()[-1])
    assert "prony_node.workloads.language" in modules
    others = ("image", "detect", "dino", "segment", "reconstruct", "ceilings")
    families = tuple(f"prony_node.workloads.{name}" for name in others)
    assert all((Path(workloads.__file__).parent / f"{name}.py").is_file() for name in others)
    assert [name for name in modules if name.startswith(families) and not name.endswith("_config")] == []
    of_data = {name.removeprefix("prony_node.data.") for name in modules if name.startswith("prony_node.data.")}
    assert {"source", "texts"} <= of_data
    assert of_data - DATA_OF_TOKENS == set()
    assert not {"torchvision", "timm", "transformers", "segmentation_models_pytorch"} & set(modules)


GENERATED = """
import sys
from prony_node.data.generated import generate
generate("tokens", sys.argv[1], 20, processes=1)
print([name for name in sys.modules if name in ("prony_node.data.pictures", "prony_node.data.detection")])
"""


def test_to_generate_tokens_imports_no_code_of_pictures(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", GENERATED, str(tmp_path / "tokens")]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1:] == ["[]"], done.stderr
