"""Prefill and decode with a KV cache answer what the whole forward pass answers."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from prony_node.backends.torch.compiling import count_flops
from prony_node.backends.torch.step import Step
from prony_node.contract import RequestError
from prony_node.contract.machine import Machine
from prony_node.workloads import WORKLOADS, build_task, find_workload
from prony_node.workloads.language import CachedGPT

SHAPE = {"layers": 2, "hidden": 32, "heads": 2, "vocabulary": 64}
SEQUENCE, ROWS = 12, 3


@pytest.fixture
def model() -> CachedGPT:
    torch.manual_seed(0)
    model = CachedGPT(SHAPE, SEQUENCE, ROWS).eval().requires_grad_(False)
    for parameter in model.parameters():
        parameter.mul_(8 if parameter.dim() == 2 else 1)  # large enough for attention to matter
    return model


def every_logit(model: CachedGPT, tokens: torch.Tensor) -> torch.Tensor:
    """By the plain model's whole pass, which knows nothing of a cache."""
    return F.linear(model(tokens), model.embed.weight)


def test_decoding_token_by_token_is_the_forward_pass(model: CachedGPT) -> None:
    tokens = torch.randint(64, (ROWS, SEQUENCE))
    for cache in model.caches:
        cache.keys.fill_(7.0)  # what lies beyond a row's position must not be seen
        cache.values.fill_(7.0)
    steps = [model.decode(tokens[:, at], torch.full((ROWS,), at)) for at in range(SEQUENCE)]
    torch.testing.assert_close(torch.stack(steps, 1), every_logit(model, tokens), atol=1e-4, rtol=1e-4)


def test_decoding_goes_on_where_the_prompt_ended(model: CachedGPT) -> None:
    tokens = torch.randint(64, (ROWS, SEQUENCE))
    whole = every_logit(model, tokens)
    torch.testing.assert_close(model.prefill(tokens[:, :7]), whole[:, 6], atol=1e-4, rtol=1e-4)
    for at in range(7, SEQUENCE):
        found = model.decode(tokens[:, at], torch.full((ROWS,), at))
        torch.testing.assert_close(found, whole[:, at], atol=1e-4, rtol=1e-4)


def test_rows_may_stand_at_different_positions(model: CachedGPT) -> None:
    tokens = torch.randint(64, (ROWS, SEQUENCE))
    model.prefill(tokens)
    positions = torch.tensor([2, 11, 5])
    rows = torch.arange(ROWS)
    found = model.decode(tokens[rows, positions], positions)
    torch.testing.assert_close(found, every_logit(model, tokens)[rows, positions], atol=1e-4, rtol=1e-4)


def test_what_is_compiled_attends_as_what_is_not(model: CachedGPT) -> None:
    """Compiled, attention is written out; eager, it is one call of torch's."""
    tokens, positions = torch.randint(64, (ROWS, SEQUENCE)), torch.tensor([2, 11, 5])
    model.prefill(tokens)
    given = tokens[torch.arange(ROWS), positions], positions
    traced = torch.compile(model.decode, backend="eager", fullgraph=True)
    torch.testing.assert_close(traced(*given), model.decode(*given), atol=1e-4, rtol=1e-4)


def test_max_autotune_leaves_products_of_one_row_to_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the docs say: torch takes them apart where this option is on, captured by us or not."""
    workload = find_workload("gpt-117m")
    asked: list[str] = []
    monkeypatch.setattr(torch, "compile", lambda function, mode, **_: asked.append(mode) or function)
    for captured in (False, True):
        given = {"mode": "infer", "phase": "decode", "size": "tiny", "batch_size": 1, "compile": "max-autotune"}
        settings = workload.effective(given, Machine("cpu", None, 2))
        Step(build_task(workload, settings), settings | {"graphs": captured}, torch.device("cpu"))._compiled(print)
    assert [torch._inductor.list_mode_options(mode)["coordinate_descent_tuning"] for mode in asked] == [True, True]
    assert "triton.cudagraphs" not in torch._inductor.list_mode_options(asked[1])


def test_the_cache_stays_where_it_is(model: CachedGPT) -> None:
    """A captured step writes to the addresses that it was captured with."""
    before = [(cache.keys.data_ptr(), cache.values.data_ptr()) for cache in model.caches]
    old = model.caches[1].keys.clone()
    model.prefill(torch.randint(64, (ROWS, SEQUENCE)))
    model.decode(torch.tensor([1, 2, 3]), torch.tensor([0, 1, 2]))
    assert [(cache.keys.data_ptr(), cache.values.data_ptr()) for cache in model.caches] == before
    assert not torch.equal(model.caches[1].keys, old)


def test_a_phase_counts_its_own_tokens() -> None:
    workload, machine = WORKLOADS["gpt-117m"], Machine("cpu", None, 2)
    found = {}
    for phase in ("forward", "prefill", "decode"):
        given = {"mode": "infer", "phase": phase, "size": "tiny", "sequence": 32}
        task = build_task(workload, workload.effective(given, machine))
        found[phase] = (task.units_per_sample, count_flops(task, training=False, recompute=False).per_sample)
    assert [found[phase][0] for phase in found] == [32, 32, 1]
    assert found["prefill"][1] == found["forward"][1]
    layers, hidden, vocabulary = 2, 64, 256
    assert found["decode"][1] == 24 * layers * hidden**2 + 4 * layers * hidden * 32 + 2 * vocabulary * hidden


def test_a_phase_is_of_inference() -> None:
    workload = find_workload("gpt-117m")
    with pytest.raises(RequestError, match="phase has no meaning with mode=train"):
        workload.parse({"phase": "decode"})
    with pytest.raises(RequestError, match="did you mean phase=decode"):
        workload.parse({"phase": "decoding", "mode": "infer"})
    cpu = Machine("cpu", None, 2)
    assert "phase" not in workload.effective({}, cpu)
    assert workload.effective({"mode": "infer"}, cpu)["phase"] == "forward"
