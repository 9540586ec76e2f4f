"""If this fails, nobody can see what a first convolution or a copy costs, which attention is fast, what parts save."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parents[2]


@pytest.fixture
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    monkeypatch.setattr(sys, "path", list(sys.path))  # the scripts put the package's folder there


@pytest.fixture
def first_calls(benchmarks: None) -> ModuleType:
    import first_calls

    return first_calls


@pytest.fixture
def attention(benchmarks: None) -> ModuleType:
    import attention

    return attention


def test_every_kind_is_timed_in_every_round(first_calls: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert first_calls.main(["mobilenetv3-large", "size=tiny", "device=cpu", "batch_size=2"]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    count = int(head.split()[0])
    rounds, kinds = lines[:4], lines[4:]
    assert [line.split(":")[0] for line in rounds] == list(first_calls.ROUNDS)
    assert len(kinds) == count > 10
    for number, line in enumerate(rounds):
        whole = sum(float(part.split()[0]) for part in line.split(": ")[1].split(", "))
        assert whole == pytest.approx(sum(float(kind.split()[number]) for kind in kinds) / 1e3, abs=0.02)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["gpt-tiny", "device=cpu", "batch_size=2"], "gpt-tiny has no convolutions of images"),
        (["efficientnet-b00"], "efficientnet-b0"),
        (["efficientnet-b0", "batch_size=many"], "batch_size"),
    ],
)
def test_a_wrong_word_is_refused(
    first_calls: ModuleType, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert first_calls.main(words) == 2
    assert said in capsys.readouterr().err


def test_without_cuda_there_is_nothing_to_choose(
    attention: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(attention.torch.cuda, "is_available", lambda: False)
    assert attention.main([]) == 2
    assert "CUDA" in capsys.readouterr().err


def test_the_fastest_kernel_is_named_first(attention: ModuleType) -> None:
    shape = attention.SHAPES["vit-l"]

    def said(**times: float) -> str:
        row: str = attention.row_of({"work": "vit-l", "mode": "train", **attention.document(shape, times)})
        return row

    expected = "vit-l, train [128, 16, 197, 64]: cudnn 2.000 ms, flash 1.000 ms; flash first"
    assert said(cudnn=0.002, flash=0.001) == expected
    assert said(cudnn=0.002, flash=0.00198).endswith("; cudnn first")  # a lead that may be chance
    assert said(flash=0.002, efficient=0.001).endswith("; efficient first")
    assert said() == "vit-l, train: none of cudnn, flash, efficient can do it"


@pytest.mark.parametrize("training", [True, False])
def test_a_kernel_is_timed_forward_and_backward(attention: ModuleType, training: bool) -> None:
    calls: list[bool] = []

    def clock(work: Any) -> float:
        calls.append(bool(work().requires_grad))
        return 1.0

    shape = attention.AttentionShape((2, 4, 8, 16), causal=True)
    times = attention.times_of(shape, torch.device("cpu"), torch.float32, clock, training=training)
    assert times["flash"] == 1.0
    assert "cudnn" not in times  # no kernel of a CPU
    assert calls == [training] * len(times)


def test_the_loss_in_parts_is_the_whole_one(benchmarks: None, tmp_path: Path) -> None:
    import logits

    out = tmp_path / "logits.json"
    assert logits.main(["--tiny", "--rounds", "2", "--json", str(out)]) == 0
    kept = json.loads(out.read_text())
    losses = {name: rounds[-1]["loss"] for name, rounds in kept["forms"].items()}
    assert losses["in parts"] == pytest.approx(losses["whole"], rel=1e-3)
    assert [len(rounds) for rounds in kept["forms"].values()] == [2, 2]
    assert kept["tokens"] == logits.TINY["tokens"]


def test_copies_beside_before_and_without_are_timed_in_turns(
    benchmarks: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import copies

    out, words = tmp_path / "copies.json", ["wideresnet", "size=tiny", "device=cpu", "batch_size=2"]
    assert copies.main([*words, "--steps", "2", "--rounds", "2", "--json", str(out)]) == 0
    kept = json.loads(out.read_text())
    assert {name: len(took) for name, took in kept["ms_a_step"].items()} == {"beside": 2, "before": 2, "none": 2}
    assert kept["bytes"] == 2 * (3 * 32 * 32 * 4 + 8)
    assert len(capsys.readouterr().out.splitlines()) == 4
    assert copies.main(["dino-swin-l", "size=tiny", "device=cpu"]) == 2
    assert "are never sent beside" in capsys.readouterr().err


def test_a_step_is_timed_beside_the_same_without_a_means(
    benchmarks: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import means

    out, words = tmp_path / "means.json", ["resnet50", "size=tiny", "device=cpu", "batch_size=2", "mode=infer"]
    few = ["--steps", "1", "--rounds", "2"]
    left_out = ["--without", "folding", "--instead", "memory_format=contiguous"]
    assert means.main([*words, *left_out, *few, "--json", str(out)]) == 0
    kept = json.loads(out.read_text())["ms_a_step"]
    assert {name: len(took) for name, took in kept.items()} == {
        "all": 2, "without folding": 2, "memory_format=contiguous": 2,
    }  # fmt: skip
    told = capsys.readouterr()
    assert len(told.out.splitlines()) == 4
    assert told.err.count("ready after") == 3
    for wrong, said in (
        (["--without", "trying"], "without trying is the same step here"),  # a CPU has no cuDNN
        (["--instead", "fusd=on"], "did you mean 'fused'"),
        (["--instead", "batch_size=2"], "batch_size=2 is the same step here"),
        ([], "nothing to leave out"),
    ):
        assert means.main([*words, *wrong]) == 2
        assert said in capsys.readouterr().err


def test_without_folding_a_model_keeps_its_batch_norms(benchmarks: None) -> None:
    import means

    workload, settings, device = means.read_words("resnet50", ["size=tiny", "device=cpu", "batch_size=2", "mode=infer"])
    norms = [
        sum(isinstance(part, torch.nn.BatchNorm2d) for part in means.Ready(workload, form, device).step.model.modules())
        for form in (means.Form("all", settings), means.Form("without folding", settings, "folding"))
    ]
    assert norms[0] == 0
    assert norms[1] > 0


def test_without_halving_weights_keep_32_bits_and_answers_are_the_same(benchmarks: None) -> None:
    import means

    words = ["size=tiny", "device=cpu", "batch_size=2", "mode=infer", "precision=bf16"]
    workload, settings, device = means.read_words("resnet50", words)
    halved, cast = (means.Ready(workload, means.Form(name, settings, name), device) for name in ("", "halving"))
    kinds = [{parameter.dtype for parameter in form.step.model.parameters()} for form in (halved, cast)]
    assert kinds == [{torch.bfloat16}, {torch.float32}]
    one, other = (form.step.output.float() for form in (halved, cast))
    assert (one - other).norm() < 0.02 * one.norm()
    with pytest.raises(means.RequestError, match="add kernels=library"):
        means.Ready(workload, means.Form("without halving", {**settings, "kernels": "fused-blocks"}, "halving"), device)


def test_without_unmasking_a_model_attends_as_its_library_does(benchmarks: None) -> None:
    pytest.importorskip("transformers")
    import means

    workload, settings, device = means.read_words("bert-base-squad", ["size=tiny", "device=cpu", "batch_size=2"])
    ready = means.Ready(workload, means.Form("without unmasking", settings, "unmasking"), device)
    assert ready.step.model.config._attn_implementation == "sdpa"


@pytest.mark.parametrize(
    ("means_of", "said"), [("unread", "resnet50 clips no gradients"), ("unmasking", "attends as its library does")]
)
def test_a_means_that_a_workload_has_not_cannot_be_left_out(benchmarks: None, means_of: str, said: str) -> None:
    import means

    workload, settings, device = means.read_words("resnet50", ["size=tiny", "device=cpu", "batch_size=2"])
    with pytest.raises(means.RequestError, match=said):
        means.Ready(workload, means.Form("without it", settings, means_of), device)


def test_without_unread_the_host_asks_for_the_norm_of_gradients(
    benchmarks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    import means

    asked = []

    def clip(*_: object, error_if_nonfinite: bool = False) -> None:
        asked.append(error_if_nonfinite)

    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", clip)
    workload, settings, device = means.read_words("dino-swin-l", ["size=tiny", "device=cpu", "batch_size=2"])
    ready = means.Ready(workload, means.Form("without unread", settings, "unread"), device)
    ready.seconds_a_step(1)
    assert len(asked) > 1
    assert all(asked)
    assert torch.nn.utils.clip_grad_norm_ is clip  # as it was, once the step is over


def test_a_form_that_cannot_be_made_ready_is_named(benchmarks: None) -> None:
    import means

    _, settings, device = means.read_words("resnet50", ["size=tiny", "device=cpu", "batch_size=2", "mode=infer"])
    with pytest.raises(means.RequestError, match=r"^no settings at all: KeyError: "):
        means.Apart("resnet50", means.Form("no settings at all", {}), device)
    killed = means.Apart("resnet50", means.Form("killed", settings), device)
    killed._process.kill()
    with pytest.raises(means.RequestError, match=r"^killed: its process ended with -9"):
        killed.seconds_a_step(1)


def test_the_figures_of_the_page_are_those_of_the_file() -> None:
    kept = json.loads((ROOT / "results" / "h200" / "attention.json").read_text())
    page = (ROOT / "docs" / "background" / "performance.md").read_text()
    assert len(kept["kinds"]) == 12
    for row in kept["kinds"]:
        (timed,) = row["timed"]
        cells = " | ".join(f"{timed['milliseconds'][name]:.2f}" for name in ("cudnn", "flash", "efficient"))
        assert f" {row['mode']} | {cells} |" in page, row["work"]
