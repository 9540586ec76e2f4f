"""Every workload is the model that its config states, and a library that is not there is named."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from prony_node.backends.torch.task import Task
from prony_node.contract import RequestError
from prony_node.contract.machine import Machine
from prony_node.contract.typed import encode
from prony_node.run.rank import describe
from prony_node.workloads import WORKLOADS, build_task, find_workload
from prony_node.workloads.config import Workload
from prony_node.workloads.language.gpt import rotary_tables, rotate

WITH_TASK = [workload for workload in WORKLOADS.values() if workload.collective is None]  # a collective has no model
MODELS = pytest.mark.parametrize("workload", WITH_TASK, ids=lambda workload: workload.name)


def task_of(workload: Workload) -> Task:
    kind = "cuda" if workload.pinned else "cpu"
    return build_task(workload, workload.effective({}, Machine(kind, None, 2)))


@MODELS
def test_the_stated_number_of_parameters_is_the_model_s(workload: Workload) -> None:
    with torch.device("meta"):
        model = task_of(workload).model()
    assert sum(parameter.numel() for parameter in model.parameters()) == workload.parameters


def test_the_published_sizes_are_met() -> None:
    published = {"resnet50": 25.6e6, "wideresnet": 17.2e6, "gpt-800m": 0.9e9, "gpt-13b": 13e9, "gpt-175b": 175e9}
    for name, parameters in published.items():
        assert WORKLOADS[name].parameters == pytest.approx(parameters, rel=0.025), name


@MODELS
def test_a_workload_s_task_counts_in_its_own_unit(workload: Workload) -> None:
    task = task_of(workload)
    assert task.unit == workload.unit
    if not workload.operation:  # which counts FLOP or bytes
        assert task.units_per_sample == (workload.fixed["sequence"] if workload.unit == "tokens" else 1)
    assert (task.recompute is not None) == workload.can_recompute
    assert workload.source
    assert workload.help


@pytest.mark.parametrize(
    ("word", "meant"),
    [("resnet-50", "resnet50"), ("gpt-80m", "gpt-800m"), ("WideResNet", "wideresnet"), ("gpt", "gpt-")],
)
def test_a_misspelt_workload_is_answered_with_the_nearest(word: str, meant: str) -> None:
    with pytest.raises(RequestError, match=f"unknown workload '{word}'; did you mean '{meant}"):
        find_workload(word)


def test_configs_need_no_torch() -> None:
    code = (
        "import sys\n"
        "sys.modules['torch'] = None\n"
        "from prony_node.workloads import WORKLOADS\n"
        "from prony_node.contract.machine import Machine\n"
        "for workload in WORKLOADS.values():\n"
        "    workload.effective({'devices': 2} if workload.collective else {}, Machine('cuda', 80.0, 8))\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(sys.path)}, timeout=300)


def test_resnet50_without_torchvision_is_a_missing_library(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        monkeypatch.delitem(sys.modules, name)

    class Nowhere:
        def find_spec(self, name: str, *_: object) -> None:
            if name.partition(".")[0] == "torchvision":
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(sys, "meta_path", [Nowhere(), *sys.meta_path])
    with pytest.raises(ModuleNotFoundError) as caught:
        task_of(WORKLOADS["resnet50"])
    assert encode(describe(caught.value)) == {
        "kind": "missing-library",
        "message": "this workload needs torchvision, which is not installed here: pip install 'prony[vision]'",
    }
    task_of(WORKLOADS["wideresnet"])  # which needs torch alone


def test_a_decoder_does_not_see_the_future() -> None:
    workload = WORKLOADS["gpt-tiny"]
    torch.manual_seed(0)
    model = build_task(workload, {"sequence": 16}).model()
    tokens = torch.randint(1024, (1, 16))
    changed = tokens.clone()
    changed[0, 10] = (changed[0, 10] + 1) % 1024
    with torch.no_grad():
        before, after = model(tokens), model(changed)
    torch.testing.assert_close(before[:, :10], after[:, :10])
    assert (before[:, 10:] - after[:, 10:]).abs().amax(-1).gt(1e-6).all()


def test_rotary_positions_are_relative() -> None:
    cosine, sine = rotary_tables(32, 8)
    torch.manual_seed(0)
    q, k = torch.randn(8), torch.randn(8)
    turned_q, turned_k = rotate(q.expand(32, 8), cosine, sine), rotate(k.expand(32, 8), cosine, sine)
    scores = turned_q @ turned_k.T
    torch.testing.assert_close(scores.diagonal(3), scores.diagonal(3)[:1].expand(29), atol=1e-4, rtol=0)
    torch.testing.assert_close(turned_q.norm(dim=-1), q.norm().expand(32))


def test_a_decoder_takes_the_length_that_was_asked_for() -> None:
    task = build_task(WORKLOADS["gpt-tiny"], {"sequence": 24})
    tokens, targets = task.sample(torch.Generator().manual_seed(0), 2)
    assert tokens.shape == targets.shape == (2, 24)
    assert task.predict(task.model(), (tokens, targets)).shape == (2, 1024)
