"""Language workloads: they train and answer at their tiny size, and their FLOPs are the literature's."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from prony_node.backends.torch import memory
from prony_node.backends.torch.compiling import count_flops
from prony_node.backends.torch.model import reference_answer
from prony_node.backends.torch.step import Step
from prony_node.backends.torch.task import Task
from prony_node.backends.torch.training import parameter_norms
from prony_node.contract import RequestError
from prony_node.contract.machine import Machine
from prony_node.contract.settings import Value
from prony_node.workloads import WORKLOADS, build_task, find_workload, language_libraries
from prony_node.workloads.language_libraries import CAUSAL_MASK_ALONE

CPU = torch.device("cpu")
SHIPPED = [name for name in WORKLOADS if name.startswith(("gpt-", "bert-"))]
GPTS = [name for name in SHIPPED if name.startswith("gpt-")]
STEPS = 12


def task_of(name: str, **given: Value) -> tuple[Task, dict[str, Value]]:
    workload = find_workload(name)
    settings = workload.effective({"device": "cpu", **given}, Machine("cpu", None, 2))
    return build_task(workload, settings), settings


@pytest.mark.parametrize("name", [*SHIPPED, "hf/gpt2", "hf/llama"])
def test_the_tiny_size_trains(name: str) -> None:
    """On samples that no step saw the loss falls, and every parameter moved."""
    task, settings = task_of(name, size="tiny")
    step = Step(task, settings, CPU)
    step.finish_model()
    held_out = task.sample(torch.Generator().manual_seed(3), 16)
    first, norms = step.held_out_loss(held_out), parameter_norms(step.model)
    samples = torch.Generator().manual_seed(1)
    step.prepare(task.sample(samples, int(settings["batch_size"])))
    for _ in range(STEPS):
        step(task.sample(samples, int(settings["batch_size"])))
    assert step.held_out_loss(held_out) < first - 0.01
    assert (parameter_norms(step.model) != norms).all()


def test_a_step_of_few_tokens_takes_a_small_rate() -> None:
    """The full rate of SGD blew up after twenty steps of 16 tokens, and only where the machine was fast enough."""
    given: dict[str, Value] = {"optimizer": "sgd", "fused": False, "batch_size": 2, "sequence": 8}
    task, settings = task_of("gpt-tiny", **given)
    step = Step(task, settings, CPU)
    step.finish_model()
    held_out, samples = task.sample(torch.Generator().manual_seed(3), 16), torch.Generator().manual_seed(1)
    first = step.held_out_loss(held_out)
    step.prepare(task.sample(samples, 2))
    for _ in range(60):
        step(task.sample(samples, 2))
    assert step.held_out_loss(held_out) < first
    rates = [task_of(name, **{**given, "batch_size": 32})[0].learning_rate for name in ("gpt-tiny", "hf/gpt2")]
    assert rates == [0.1, 0.1]
    assert task_of("gpt-tiny", batch_size=2)[0].learning_rate == 3e-4


PHASES: list[tuple[str, dict[str, Value]]] = [
    *((name, {}) for name in (*SHIPPED, "hf/gpt2", "hf/llama")),
    ("gpt-117m", {"phase": "prefill"}),
    ("gpt-117m", {"phase": "decode"}),
    ("gpt-117m", {"phase": "decode", "precision": "bf16"}),
    ("gpt-117m", {"phase": "decode", "batch_size": 3}),
]


@pytest.mark.parametrize(("name", "given"), PHASES, ids=lambda part: str(part))
def test_the_tiny_size_answers_as_the_reference_does(name: str, given: dict[str, Value]) -> None:
    """The reference batch is larger than the step's: a cache must not care, nor what steps left in it."""
    task, settings = task_of(name, size="tiny", mode="infer", **given)
    step = Step(task, settings, CPU)
    held_out, samples = task.sample(torch.Generator().manual_seed(3), 16), int(settings["batch_size"])
    reference = reference_answer(task, step.model, held_out)
    step.finish_model()
    others = torch.Generator().manual_seed(1)
    step.prepare(step.place(task.sample(others, samples)))
    for _ in range(5):
        step(step.place(task.sample(others, samples)))
    step(step.place(tuple(tensor[:samples] for tensor in held_out)))
    assert step.output is not None
    error = (step.output.float() - reference[:samples]).norm() / reference[:samples].norm()
    assert error < (6e-2 if settings["precision"] == "bf16" else 1e-4)


@pytest.mark.parametrize("name", GPTS)
def test_a_decoder_s_flops_are_the_literature_s(name: str) -> None:
    """The literature has logits at every position, as training does; inference answers with the last alone."""
    task, settings = task_of(name, mode="infer")
    workload = find_workload(name)
    other_logits = (int(settings["sequence"]) - 1) * 2 * workload.shape["vocabulary"] * workload.shape["hidden"]
    counted = count_flops(task, training=False, recompute=False).per_sample + other_logits
    assert counted == pytest.approx(workload.flops, rel=0.03)


@pytest.mark.parametrize(("name", "training_flops"), [("gpt-13b", 2.31e22), ("gpt-175b", 3.14e23)])
def test_gpt3_s_own_table_is_met(name: str, training_flops: float) -> None:
    """Appendix D of the paper: 300 billion tokens, forward and backward, attention left out."""
    workload = find_workload(name)
    assert workload.flops is not None
    sequence, layers, hidden = int(workload.fixed["sequence"]), workload.shape["layers"], workload.shape["hidden"]
    without_attention = workload.flops / sequence - 4 * layers * hidden * sequence
    assert 3 * without_attention == pytest.approx(training_flops / 300e9, rel=0.03)


@pytest.mark.parametrize("name", ["bert-base-squad", "bert-large-squad"])
def test_bert_s_flops_are_the_literature_s(name: str) -> None:
    forward = count_flops(task_of(name, mode="infer")[0], training=False, recompute=False)
    assert forward.per_sample == pytest.approx(find_workload(name).flops, rel=0.03)


def test_bert_base_at_128_tokens_is_what_mobilebert_s_authors_count() -> None:
    task, _ = task_of("bert-base-squad", mode="infer", sequence=128)
    assert count_flops(task, training=False, recompute=False).per_sample == pytest.approx(22.5e9, rel=0.03)


def test_bert_sees_both_ways_and_as_transformers_attends() -> None:
    task, _ = task_of("bert-base-squad", size="tiny")
    torch.manual_seed(0)
    model: Any = task.model().eval()
    batch = task.sample(torch.Generator().manual_seed(0), 2)
    with torch.no_grad():
        fused = task.predict(model, batch)
        model.config._attn_implementation = "eager"
        torch.testing.assert_close(task.predict(model, batch), fused, atol=1e-5, rtol=1e-4)
        changed = batch[0].clone()
        changed[:, -2] = (changed[:, -2] + 1) % 200 + 20
        assert (task.predict(model, (changed, *batch[1:])) - fused)[:, 0].abs().max() > 1e-6


def test_an_answer_lies_in_the_text_between_its_marks() -> None:
    task, _ = task_of("bert-base-squad")
    tokens, segments, starts, ends = task.sample(torch.Generator().manual_seed(0), 64)
    rows = torch.arange(64)
    assert tokens.shape == segments.shape == (64, 384)
    assert tokens.max() < 30_522
    assert (starts < ends).all()
    assert (ends - starts < 384 // 16).all()
    assert (segments[rows, starts] == 1).all()
    assert (segments[rows, ends] == 1).all()
    assert ((tokens >= 3) & (tokens <= 10)).sum(1).eq(2).all()  # the marks stand at the answer's ends alone
    assert len(set(starts.tolist())) > 32


def test_a_sequence_longer_than_the_positions_is_refused() -> None:
    with pytest.raises(RequestError, match="bert-base-squad has 512 positions"):
        find_workload("bert-base-squad").parse({"sequence": "513"})
    with pytest.raises(RequestError, match="hf/gpt2 has 1024 positions"):
        task_of("hf/gpt2", sequence=1025)


@pytest.mark.parametrize("kind", CAUSAL_MASK_ALONE)
def test_no_mask_is_left_out_that_hides_more_than_the_future(kind: str) -> None:
    """Ours makes none: the answer is still that of transformers' own attention with its own masks."""
    from transformers import AutoModelForCausalLM

    task, _ = task_of(f"hf/{kind}", size="tiny")
    torch.manual_seed(0)
    ours: Any = task.model().eval()
    assert ours.config._attn_implementation == "sdpa_without_mask"
    config = language_libraries.configuration(find_workload(f"hf/{kind}"), tiny=True)
    own = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    own.load_state_dict(ours.state_dict())
    tokens = task.sample(torch.Generator().manual_seed(0), 2)[0]
    with torch.no_grad():
        logits = ours(input_ids=tokens, use_cache=False).logits
        torch.testing.assert_close(logits, own(input_ids=tokens, use_cache=False).logits, atol=1e-4, rtol=1e-3)


def test_a_window_shorter_than_the_sequence_keeps_its_mask() -> None:
    config = language_libraries.configuration(find_workload("hf/mistral"))
    assert language_libraries.attention_of(config, 1024) == "sdpa_without_mask"
    assert language_libraries.attention_of(config, 8192) is None


def test_an_encoder_s_type_does_not_see_the_token_that_it_is_to_tell() -> None:
    task, _ = task_of("hf/bert", size="tiny")
    model = task.model().eval()
    tokens = task.sample(torch.Generator().manual_seed(0), 1)[0]
    changed = tokens.clone()
    changed[0, 20] = (changed[0, 20] + 1) % 256
    with torch.no_grad():
        before, after = (model(input_ids=each).logits for each in (tokens, changed))
    torch.testing.assert_close(before[:, :20], after[:, :20])


def test_a_config_of_the_user_s_is_built(tmp_path: Path) -> None:
    small = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2,
             "num_key_value_heads": 1, "intermediate_size": 96, "vocab_size": 100, "dtype": "bfloat16"}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(small))
    for name in (f"hf/{tmp_path}", f"hf/{tmp_path}/config.json"):
        task, _ = task_of(name, sequence=16)
        model = task.model()
        assert sum(parameter.numel() for parameter in model.parameters()) == 2 * 100 * 64 + 64 * (
            64 + 64 + 32 + 32 + 3 * 96 + 2 + 1
        )
        assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}  # whatever the file says


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("hf/lama", "unknown causal language model of transformers 'lama'; did you mean 'llama'"),
        ("hf/./nowhere/config.json", "cannot be read: No such file"),
        ("hf/", "hf/ wants the type of a model"),
        ("hg/llama", "did you mean 'hf/llama'"),
    ],
)
def test_a_wrong_name_is_answered_with_what_is_right(name: str, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        language_libraries.check(find_workload(name))


@pytest.mark.parametrize(
    ("text", "said"),
    [("{", "is not JSON"), ("[]", "no model_type"), ('{"model_type": "gtp2"}', "did you mean 'gpt2'"),
     ('{"model_type": "llama", "hidden_size": "wide"}', "transformers refuses the configuration")],
)  # fmt: skip
def test_a_wrong_config_is_answered_with_what_is_wrong(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(RequestError, match=said):
        language_libraries.check(find_workload(f"hf/{tmp_path}"))


def test_a_model_of_unstated_size_that_cannot_fit_is_refused_before_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    task, settings = task_of("hf/llama")
    assert memory.parameters_of(task) == 6_738_415_616  # as of the published 7B
    monkeypatch.setattr(memory, "free_and_total", lambda device: (16 * 2**30, 16 * 2**30))
    with pytest.raises(memory.OutOfMemory, match=r"weights, gradients and optimizer state alone need 100\.4 GiB"):
        memory.refuse_hopeless(memory.parameters_of(task), settings, CPU)


@pytest.mark.parametrize("name", ["bert-base-squad", "hf/llama"])
def test_recomputed_layers_are_counted_apart(name: str) -> None:
    task, _ = task_of(name, size="tiny")
    found = count_flops(task, training=True, recompute=True)
    assert found.recomputed == pytest.approx(found.per_sample / 3, rel=0.35)
    assert found.recomputed > 0


@pytest.mark.parametrize("name", ["gpt-117m", "gpt-800m"])
def test_selective_recomputation_repeats_the_products_of_attention_alone(name: str) -> None:
    """Queries with keys and weights with values, each 2 FLOP x sequence^2 x hidden in every layer."""
    task, settings = task_of(name, recompute="selective")
    found = count_flops(task, training=True, recompute=True)
    shape = find_workload(name).shape
    assert found.recomputed == 4 * shape["layers"] * shape["hidden"] * int(settings["sequence"]) ** 2
    assert found.per_sample == count_flops(task_of(name)[0], training=True, recompute=False).per_sample


class Attentions(TorchDispatchMode):
    """Counts the attention kernels that are called in here."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "scaled_dot_product" in str(func):
            self.calls["backward" if "backward" in str(func) else "forward"] += 1
        return func(*args, **(kwargs or {}))


def gradients(recompute: Value, compiled: bool = False) -> tuple[list[torch.Tensor], Counter[str]]:
    task, settings = task_of("gpt-tiny", size="tiny", recompute=recompute)
    torch.manual_seed(0)
    model = task.model()
    if settings["recompute"]:
        assert task.recompute is not None
        task.recompute(model)
    batch = task.sample(torch.Generator().manual_seed(1), 2)
    loss = torch.compile(task.loss, backend="aot_eager") if compiled else task.loss
    with Attentions() if not compiled else nullcontext() as seen:
        loss(model, batch).backward()
    return [parameter.grad for parameter in model.parameters()], Counter() if seen is None else seen.calls


def test_selective_recomputation_runs_attention_twice_and_changes_no_gradient() -> None:
    (plain, once), (selective, twice) = gradients(False), gradients("selective")
    assert once == {"forward": 2, "backward": 2}  # two layers
    assert twice == {"forward": 4, "backward": 2}
    compiled, _ = gradients("selective", compiled=True)
    for one, other, third in zip(plain, selective, compiled, strict=True):
        assert torch.equal(one, other)
        torch.testing.assert_close(third, one)


def test_names_of_transformers_need_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "transformers", None)
    workload = find_workload("hf/llama")
    assert workload.parameters is None
    assert workload.asks_node
    assert workload.parse({"sequence": "512", "size": "tiny"}) == {"sequence": 512, "size": "tiny"}
    refuse: list[Callable[[], object]] = [lambda: task_of("hf/llama"), lambda: task_of("bert-base-squad")]
    for ask in refuse:
        with pytest.raises(ModuleNotFoundError):
            ask()
