"""`weights=PATH` puts a user's checkpoint into the model, whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from prony_node.backends.torch.compiling import count_flops
from prony_node.backends.torch.task import Task
from prony_node.contract import RequestError
from prony_node.contract.machine import Machine
from prony_node.workloads import build_task, find_workload
from prony_node.workloads.weights import read_weights, with_weights


def small() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))


def saved(tmp_path: Path, content: object, name: str = "checkpoint.pt") -> str:
    torch.save(content, tmp_path / name)
    return str(tmp_path / name)


def tiny_task(**given: str) -> Task:
    workload = find_workload("vit-l")
    return build_task(workload, workload.effective(workload.parse({"size": "tiny", **given}), Machine("cpu", None, 2)))


def test_a_model_has_the_weights_of_its_file(tmp_path: Path) -> None:
    torch.manual_seed(1)
    state = tiny_task().model().state_dict()
    task = tiny_task(weights=saved(tmp_path, state))
    torch.manual_seed(2)
    for name, tensor in task.model().state_dict().items():
        torch.testing.assert_close(tensor, state[name], msg=name)
    assert count_flops(task, training=False, recompute=False).per_sample > 0  # on meta nothing is loaded


@pytest.mark.parametrize("wrap", [lambda s: {"state_dict": s, "epoch": 3}, lambda s: {"model": s}, lambda s: s])
def test_what_training_scripts_wrap_around_weights_is_taken_off(tmp_path: Path, wrap: object) -> None:
    state = {f"module.{name}": tensor for name, tensor in small().state_dict().items()}
    path = saved(tmp_path, wrap(state))  # type: ignore[operator]
    torch.testing.assert_close(with_weights(small, path)().state_dict()["0.weight"], state["module.0.weight"])


def test_safetensors_are_read_where_the_library_is(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    state = small().state_dict()
    safetensors.save_file(state, tmp_path / "model.safetensors")
    torch.testing.assert_close(read_weights(tmp_path / "model.safetensors")["0.weight"], state["0.weight"])
    (tmp_path / "broken.safetensors").write_bytes(b"no tensors")
    with pytest.raises(RequestError, match=r"broken\.safetensors is not a safetensors file"):
        read_weights(tmp_path / "broken.safetensors")


def test_a_file_of_another_model_is_answered_with_what_does_not_fit(tmp_path: Path) -> None:
    path = saved(tmp_path, nn.Sequential(nn.Linear(4, 2), nn.Identity(), nn.Linear(2, 2)).state_dict())
    with pytest.raises(RequestError) as caught:
        with_weights(small, path)()
    said = str(caught.value)
    assert f"weights={path} does not fit this model: 5 tensors of the model are not in it (1.weight, 1.bias, " in said
    assert "2 of its tensors are not the model's (2.weight, 2.bias)" in said
    assert "2 have another shape (0.weight is [2, 4] there and [3, 4] here, " in said


def test_a_file_that_is_not_there_is_refused_when_the_task_is_built(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="there is no such file"):
        tiny_task(weights=str(tmp_path / "nothing.pt"))


class Code:
    """An object that only a file with code in it can bring back."""


@pytest.mark.parametrize(
    ("content", "said"),
    [(Code(), "not a file of tensors alone"), ([1, 2], "holds no state_dict"), ({"a": 1}, "holds no state_dict")],
)
def test_what_is_no_checkpoint_is_refused_and_never_executed(tmp_path: Path, content: object, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        with_weights(small, saved(tmp_path, content))()
    (tmp_path / "text.pt").write_text("hello")
    with pytest.raises(RequestError, match="not a file of tensors alone"):
        with_weights(small, str(tmp_path / "text.pt"))()
