"""FLOPs counted on the model agree with a count by hand; attention and recomputation are seen."""

from __future__ import annotations

import pytest

from prony_node.backends.protocol import Flops
from prony_node.backends.torch import compiling
from prony_node.backends.torch.compiling import count_flops
from prony_node.workloads import build_task, find_workload


def counted(name: str, *, training: bool = True, recompute: bool = False, **own: int) -> Flops:
    workload = find_workload(name)
    task = build_task(workload, {**workload.fixed, **own})
    return count_flops(task, training=training, recompute=recompute)


def test_resnet50_is_what_its_authors_and_torchvision_count() -> None:
    forward = counted("resnet50", training=False)
    assert forward.per_sample == pytest.approx(2 * 4.09e9, rel=0.03)  # 4.09 G multiply-adds an image
    training = counted("resnet50")
    # Twice the forward work again, but no gradient by the image: the first convolution's is not needed.
    first = 2 * 7 * 7 * 3 * 64 * 112 * 112
    assert training.per_sample == pytest.approx(3 * forward.per_sample - first, rel=1e-6)
    assert "forward and backward" in training.convention
    assert "backward" not in forward.convention


@pytest.mark.parametrize("name", ["resnet50", "swin-t", "efficientnet-b0"])
@pytest.mark.parametrize("training", [True, False])
def test_norms_that_are_not_tried_leave_the_count_as_it_is(
    name: str, training: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tiny() -> float:
        workload = find_workload(name)
        settings = {**workload.fixed, **(workload.tiny or {}), "size": "tiny"}
        return count_flops(build_task(workload, settings), training=training, recompute=False).per_sample

    found = tiny()
    monkeypatch.setattr(compiling, "NORMS", {})
    assert tiny() == found > 0


def gpt_training_flops_per_token(name: str, sequence: int) -> float:
    """6 x (weights that take part in a product, the tied output matrix among them) + 12 x layers x hidden x sequence.

    A product of weights costs 2 FLOP a weight and token, three times (forward, both gradients). Attention's two
    products cost 4 x hidden x sequence forward and three times that in all, counted as full, not causal.
    """
    shape = find_workload(name).shape
    layers, hidden = shape["layers"], shape["hidden"]
    weights = 12 * layers * hidden**2 + shape["vocabulary"] * hidden
    return 6 * weights + 12 * layers * hidden * sequence


@pytest.mark.parametrize(("name", "sequence"), [("gpt-tiny", 128), ("gpt-117m", 1024), ("gpt-800m", 2048)])
def test_a_decoder_is_six_times_its_weights_and_its_attention(name: str, sequence: int) -> None:
    found = counted(name)
    assert found.per_sample / sequence == pytest.approx(gpt_training_flops_per_token(name, sequence), rel=1e-9)
    assert "causal attention counted as full" in found.convention


def test_attention_is_not_hidden_in_a_fused_kernel() -> None:
    short, long = counted("gpt-tiny", sequence=64), counted("gpt-tiny", sequence=512)
    assert long.per_sample / 512 - short.per_sample / 64 == pytest.approx(12 * 4 * 128 * (512 - 64))


def test_prefill_answers_for_the_last_token_alone() -> None:
    shape, sequence = find_workload("gpt-tiny").shape, 128
    layers, hidden = shape["layers"], shape["hidden"]
    by_hand = sequence * (24 * layers * hidden**2 + 4 * layers * hidden * sequence) + 2 * shape["vocabulary"] * hidden
    assert counted("gpt-tiny", training=False).per_sample == pytest.approx(by_hand)


def wideresnet_forward_flops() -> int:
    """Convolutions at 32, 16 and 8 pixels, the three 1x1 shortcuts and the last layer, by hand."""
    multiply_adds = 9 * 3 * 16 * 32**2
    inputs = 16
    for outputs, size in ((160, 32), (320, 16), (640, 8)):
        first = 9 * inputs * outputs + 9 * outputs**2 + inputs * outputs
        second = 2 * 9 * outputs**2
        multiply_adds += (first + second) * size**2
        inputs = outputs
    return 2 * (multiply_adds + 640 * 100)


def test_wideresnet_is_what_a_hand_counts() -> None:
    forward = wideresnet_forward_flops()
    assert counted("wideresnet", training=False).per_sample == forward
    assert counted("wideresnet").per_sample == 3 * forward - 2 * 9 * 3 * 16 * 32**2


def test_recomputed_work_is_counted_apart() -> None:
    plain, again = counted("gpt-tiny"), counted("gpt-tiny", recompute=True)
    assert plain.recomputed == 0
    assert again.per_sample == plain.per_sample
    shape = find_workload("gpt-tiny").shape
    layers, hidden, sequence = shape["layers"], shape["hidden"], 128
    forward_of_layers = sequence * (24 * layers * hidden**2 + 4 * layers * hidden * sequence)
    # Torch stops a recomputation early, once it has what the backward pass needs: the last products may be left out.
    assert 0.6 * forward_of_layers <= again.recomputed <= forward_of_layers
