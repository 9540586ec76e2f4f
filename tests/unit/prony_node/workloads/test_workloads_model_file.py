"""A user's own model file: the guide's example is what it says, and every mistake is a sentence with its line."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from prony_node.__main__ import main
from prony_node.backends.torch.step import Step
from prony_node.contract import Plan, RequestError, Trial, files
from prony_node.contract.machine import Machine
from prony_node.contract.record import new_record
from prony_node.run.claim import load_plan
from prony_node.run.questions import describe_model_file
from prony_node.workloads import build_task, workload_of
from prony_node.workloads.model_file import keep_model_file, load_model_file
from prony_node.workloads.model_file_config import content_hash, from_document, is_model_file, to_document

GUIDE = Path(__file__).parents[4] / "docs" / "how-to" / "own-model.md"
CPU = torch.device("cpu")


def example() -> str:
    """The file of the guide, as a reader would copy it."""
    return re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)[-1]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "mymodel.py"
    path.write_text(example())
    return path


def line_of(text: str) -> int:
    return next(number for number, line in enumerate(example().splitlines(), start=1) if text in line)


@pytest.mark.parametrize("word", ["./mymodel.py", "mymodel.py", "../a/b.py", "/x/mymodel", "~/m.py", "./mymodel"])
def test_a_word_with_a_path_or_an_ending_is_a_file(word: str) -> None:
    assert is_model_file(word)


@pytest.mark.parametrize("word", ["mymodel", "resnet50", "timm/resnet18", "quick", "gpt-tiny"])
def test_a_bare_name_is_no_file(word: str) -> None:
    assert not is_model_file(word)


def test_the_example_is_about_forty_lines_and_is_described(path: Path) -> None:
    assert len(example().splitlines()) <= 42
    answer = describe_model_file(path)
    assert answer["refused"] is None
    assert answer["sha256"] == content_hash(path.read_bytes())
    workload = from_document(json.loads(json.dumps(answer["workload"])))  # as the controller gets it
    assert workload == load_model_file(path).workload
    assert workload.name == f"mymodel@{answer['sha256'][:8]}"
    assert workload.module == str(path)
    assert workload.parse({"hidden": "32"}) == {"hidden": 32}
    with pytest.raises(RequestError, match="did you mean 'hidden'"):
        workload.parse({"hiden": "32"})


def test_the_example_trains_and_infers(path: Path) -> None:
    workload = load_model_file(path).workload
    for mode in ("train", "infer"):
        settings = workload.effective({"mode": mode, "hidden": 16, "batch_size": 32}, Machine("cpu", None, 1))
        task = build_task(workload, settings)
        step = Step(task, settings, CPU)
        step.finish_model()
        held = step.place(task.sample(torch.Generator().manual_seed(9), 64))
        before = step.held_out_loss(held)
        generator = torch.Generator().manual_seed(0)
        step.prepare(step.place(task.sample(generator, 32)))
        for _ in range(20):
            step(step.place(task.sample(generator, 32)))
        assert step.output is not None
        if mode == "train":
            assert step.held_out_loss(held) < 0.7 * before
        else:
            assert step.output.shape == (32, 10)


def change(old: str, new: str) -> str:
    assert old in example()
    return example().replace(old, new, 1)


MISTAKES = [
    (lambda: change("def build(workload, settings):", "def build(workload, settings"),
     f"line {line_of('def build')}: .*never closed"),
    (lambda: change("import torch.nn.functional as F", "import torch.nn.functionnal as F"),
     "line 3: ModuleNotFoundError: No module named 'torch.nn.functionnal'"),
    (lambda: change('unit="images",\n    parameters', 'units="images",\n    parameters'), "TypeError: .*'units'"),
    (lambda: change("nn.ReLU()", "nn.RELU()"), f"line {line_of('nn.Flatten()')}: AttributeError"),
    (lambda: change("nn.Linear(3 * 28 * 28", "nn.Linear(28 * 28"), f"line {line_of('cross_entropy')}: RuntimeError"),
    (lambda: change("parameters=None", "parameters=7"), "states 7 parameters, and its model has 604,938"),
    (lambda: change("WORKLOAD = ", "MODEL = "), "defines no WORKLOAD"),
    (lambda: change("def build(", "def make("), r"defines no build\(workload, settings\)"),
    (lambda: change('name="mymodel"', 'name="my model"'), "name is letters, digits, dots and dashes"),
    (lambda: change('"infer/cpu": 64, ', ""), "batch has no entry infer/cpu"),
    (lambda: change('{"train": 1.0, "infer": 1.0}', '{"train": 1.0}'), "memory_gib has no entry infer"),
    (lambda: change('unit="images",\n        units', 'unit="tokens",\n        units'), "counts 'tokens'"),
    (lambda: change("    return Task(", "    return dict("), "answers a dict, not a Task"),
    (lambda: example() + "raise SystemExit(3)\n", "SystemExit: 3"),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(MISTAKES)))
def test_a_mistake_is_a_sentence(path: Path, number: int) -> None:
    source, says = MISTAKES[number]
    path.write_text(source())
    refused = describe_model_file(path)["refused"]
    assert refused is not None
    assert re.search(says, refused), refused
    assert "mymodel.py" in refused
    assert "\n" not in refused


def test_what_the_file_prints_does_not_spoil_the_answer(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path.write_text(example() + "print('hello')\n")
    assert main(["model", str(path)]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["refused"] is None
    assert "hello" in said.err


def plan_of(path: Path) -> Plan:
    answer = describe_model_file(path)
    workload = from_document(answer["workload"])
    file = {name: answer[name] for name in ("path", "sha256", "workload")}
    return Plan(run_id="mine", trial=Trial(workload.name, {"hidden": 8}), file=file)


def test_a_plan_carries_what_the_file_states(path: Path, tmp_path: Path) -> None:
    plan = plan_of(path)
    (tmp_path / "plan.json").write_text(json.dumps(plan.to_json()))
    loaded = load_plan(tmp_path / "plan.json")
    assert loaded == plan
    assert workload_of(loaded).name == plan.trial.workload
    record = new_record(plan, status="ok", started="", ended="")
    assert record["trial"]["file"] == {"path": str(path), "sha256": content_hash(path.read_bytes())}
    wrong = replace(plan, trial=Trial(plan.trial.workload, {"hiden": 8}))
    (tmp_path / "plan.json").write_text(json.dumps(wrong.to_json()))
    with pytest.raises(RequestError, match="did you mean 'hidden'"):
        load_plan(tmp_path / "plan.json")


def test_a_file_that_changed_after_planning_is_not_run_under_its_old_name(path: Path, tmp_path: Path) -> None:
    workload = workload_of(plan_of(path))
    keep_model_file(workload, tmp_path)
    assert (tmp_path / files.MODEL_FILE).read_text() == example()
    path.write_text(example() + "# changed\n")
    with pytest.raises(RequestError, match="was changed after the run was planned"):
        build_task(workload, workload.effective({}, Machine("cpu", None, 1)))
    with pytest.raises(RequestError, match="was changed while"):
        keep_model_file(workload, tmp_path)
    assert load_model_file(path).workload.name != workload.name


def test_a_plan_whose_file_is_another_s_is_refused(path: Path) -> None:
    plan = plan_of(path)
    with pytest.raises(RequestError, match="its model file is mymodel@"):
        workload_of(replace(plan, trial=Trial("gpt-tiny", {})))
    with pytest.raises(RequestError, match="not what a model file states"):
        workload_of(replace(plan, file={"workload": {"name": "x"}}))
    stranger = to_document(load_model_file(path).workload) | {"colour": "red"}
    with pytest.raises(RequestError, match="colour"):
        from_document(stranger)
