"""Segmentation models: parameters and FLOPs are the literature's, ignored pixels count nowhere, tiny ones learn."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from small_steps import step_of

from prony_node.backends.torch.flops import count_flops
from prony_node.contract import RequestError
from prony_node.contract.machine import Machine
from prony_node.contract.settings import Value
from prony_node.data.dataset import Encoded, FileReader, Origin
from prony_node.data.segmentation import StreetScenes
from prony_node.run.rank import describe
from prony_node.workloads import build_task, find_workload
from prony_node.workloads.config import Workload
from prony_node.workloads.segment.config import (
    SEGMENT_WORKLOADS,
    deeplab_multiply_adds,
    deeplab_parameters,
    segformer_multiply_adds,
)
from prony_node.workloads.segment.task import enlarged, segmentation_loss, segmentation_scores

MODELS = pytest.mark.parametrize("workload", SEGMENT_WORKLOADS, ids=lambda workload: workload.name)
STEPS = 20


def multiply_adds(name: str, height: int, width: int) -> float:
    task = build_task(find_workload(name), {"crop_height": height, "crop_width": width})
    return count_flops(task, training=False, recompute=False).per_sample / 2


# The models are those of the literature


@MODELS
def test_the_flops_are_the_stated_ones(workload: Workload) -> None:
    task = build_task(workload, dict(workload.fixed))
    forward = count_flops(task, training=False, recompute=False).per_sample
    assert forward == pytest.approx(workload.flops, rel=0.03)
    assert workload.flops_source
    assert 2.9 < count_flops(task, training=True, recompute=False).per_sample / forward < 3.0


def test_segformer_has_the_paper_s_parameters_and_work() -> None:
    """Table 1 of the paper: an encoder of 60.8 M, a decoder of 3.3 M; 95.7 G and 1240.6 G at two resolutions."""
    workload = find_workload("segformer-b4")
    assert workload.parameters == pytest.approx(64.1e6, rel=0.03)
    with torch.device("meta"):
        model = build_task(workload, dict(workload.fixed)).model()
    encoder = sum(p.numel() for name, p in model.named_parameters() if not name.startswith("decode_head."))
    assert encoder == pytest.approx(60.8e6, rel=0.01)
    more_classes = (150 - 19) * 768 * 128 * 128  # the paper's small image has those of ADE20K
    assert multiply_adds("segformer-b4", 512, 512) + more_classes == pytest.approx(95.7e9, rel=0.03)
    assert multiply_adds("segformer-b4", 1024, 2048) == pytest.approx(1240.6e9, rel=0.03)
    assert segformer_multiply_adds(1024, 2048) == pytest.approx(1240.6e9)


def test_deeplab_is_what_was_counted_by_hand() -> None:
    assert find_workload("deeplabv3plus-r101").parameters == deeplab_parameters() == 45_674_339
    for height, width in ((512, 1024), (64, 128)):
        assert multiply_adds("deeplabv3plus-r101", height, width) == deeplab_multiply_adds(height, width)


# Loss and scores


def test_the_loss_is_the_mean_over_pixels_that_are_not_ignored() -> None:
    torch.manual_seed(0)
    logits, masks = torch.randn(2, 5, 6, 8), torch.randint(5, (2, 6, 8))
    masks[0, :3] = 255
    known = masks != 255
    each = F.cross_entropy(logits.permute(0, 2, 3, 1)[known], masks[known])
    torch.testing.assert_close(segmentation_loss(logits, masks), each)
    nothing = segmentation_loss(logits, torch.full_like(masks, 255))
    assert float(nothing) == 0.0  # a crop of nothing but unknown pixels teaches nothing, and breaks nothing


def test_logits_of_a_quarter_are_enlarged_before_they_are_judged() -> None:
    logits = torch.tensor([[[[0.0, 4.0]], [[4.0, 0.0]]]])  # the second class on the left, the first on the right
    answer = enlarged(logits, (2, 8)).argmax(1)
    assert answer.tolist() == [[[1, 1, 1, 1, 0, 0, 0, 0]] * 2]
    full = torch.randn(1, 2, 4, 4)
    assert enlarged(full, (4, 4)) is full


def scenes() -> StreetScenes:
    origin = Origin("cityscapes", "test", Path(), ())
    empty = Encoded(origin, (), torch.zeros(0, dtype=torch.int64), FileReader(()), 0)
    return StreetScenes(origin, empty, empty)


def test_the_mean_intersection_over_union_is_of_pixels_summed_over_the_split() -> None:
    """Against a count pixel by pixel, over samples of one and of several batches."""
    torch.manual_seed(1)
    logits, masks = torch.randn(4, 6, 5, 7), torch.randint(4, (4, 5, 7))  # classes 4 and 5 never occur
    masks[torch.rand(masks.shape) < 0.2] = 255
    answers = logits.argmax(1)
    shares = []
    for number in range(4):
        told, right = (answers == number) & (masks != 255), masks == number
        shares.append(int((told & right).sum()) / int((told | right).sum()))
    parts = [segmentation_scores(logits[at], masks[at]) for at in (slice(0, 3), slice(3, 4))]
    found = scenes().scores({name: torch.cat([part[name].float() for part in parts]) for name in parts[0]})
    assert found["miou"] == pytest.approx(sum(shares) / 4, rel=1e-6)
    assert found["loss"] == pytest.approx(float(F.cross_entropy(logits, masks, ignore_index=255)), rel=1e-6)


def test_a_perfect_answer_has_a_miou_of_one_and_no_pixel_none() -> None:
    masks = torch.randint(3, (2, 4, 4))
    logits = 20 * F.one_hot(masks, 5).permute(0, 3, 1, 2).float()
    assert scenes().scores(segmentation_scores(logits, masks))["miou"] == 1.0
    unknown = segmentation_scores(logits, torch.full_like(masks, 255))
    assert scenes().scores(unknown)["miou"] != scenes().scores(unknown)["miou"]  # not a number: the record says null


# Tiny ones train and infer


@MODELS
def test_a_tiny_one_learns_scenes_that_it_did_not_see(workload: Workload) -> None:
    step = step_of(workload.name, size="tiny")
    held_out = step.place(step.task.sample(torch.Generator().manual_seed(7), 8))
    before = step.held_out_loss(held_out)
    generator = torch.Generator().manual_seed(8)
    batches = [step.place(step.task.sample(generator, 8)) for _ in range(STEPS)]
    step.prepare(batches[0])
    for batch in batches:
        step(batch)
    assert step.held_out_loss(held_out) < 0.85 * before
    assert sum(parameter.numel() for parameter in step.model.parameters()) < 1e6


@MODELS
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_tiny_one_answers_for_every_pixel_as_its_reference_does(workload: Workload, precision: str) -> None:
    given: dict[str, Value] = {"size": "tiny", "mode": "infer", "crop_height": 64, "crop_width": 96}
    fast, plain = step_of(workload.name, precision=precision, **given), step_of(workload.name, preset="plain", **given)
    batch = plain.task.sample(torch.Generator().manual_seed(0), 2)
    plain.prepare(plain.place(batch))
    fast.prepare(fast.place(batch))
    assert fast.output is not None
    assert plain.output is not None
    assert fast.output.shape == (2, 19, 64, 96)
    error = (fast.output.float() - plain.output).norm() / plain.output.norm()
    assert error < (1e-5 if precision == "fp32" else 6e-2)


def test_large_crops_are_held_out_in_small_numbers() -> None:
    for workload in SEGMENT_WORKLOADS:
        assert build_task(workload, dict(workload.fixed)).held_out == 4
        assert build_task(workload, {**workload.fixed, "size": "tiny"}).held_out is None


# Requests, defaults, libraries


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("deeplabv3plus-r101", {"crop_height": "500"}, "squares of 8 pixels; crop_height=496 would do"),
        ("deeplabv3plus-r101", {"batch_size": "1"}, "normalises over a batch .*; batch_size=2 would do"),
        ("segformer-b4", {"crop_width": "16"}, "a whole number of at least 32"),
        ("segformer-b4", {"data": "generated", "data_format": "shards"}, "what segformer-b4 reads is written as"),
        ("segformer-b4", {"recompute": "on"}, "recompute=on is not offered"),
        ("segformer-b4", {"data": "generated", "until": "miou>=62"}, "did you mean miou>=0.62"),
        ("segformer-b4", {"data": "generated", "until": "accuracy>=0.5"}, "unknown score 'accuracy'"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_starts(name: str, given: dict[str, str], said: str) -> None:
    with pytest.raises(RequestError, match=said):
        find_workload(name).parse(given)


def test_what_can_work_is_not_refused() -> None:
    assert find_workload("segformer-b4").parse({"crop_height": "500", "batch_size": "1"})
    assert find_workload("deeplabv3plus-r101").parse({"mode": "infer", "batch_size": "1"})


def test_a_small_device_gets_a_batch_that_can_still_be_normalised() -> None:
    workload = find_workload("deeplabv3plus-r101")
    sizes = {gib: workload.effective({}, Machine("cuda", gib, 8))["batch_size"] for gib in (141.0, 40.0, 4.0)}
    assert sizes == {141.0: 16, 40.0: 8, 4.0: 2}


def test_published_checkpoints_of_segformer_fit_by_their_own_names(tmp_path: Path) -> None:
    """transformers writes the names that its published files have, which are not those of its model."""
    from safetensors import safe_open

    step = step_of("segformer-b4", size="tiny", seed=5)
    step.model.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    with safe_open(file, "pt") as opened:
        assert "segformer.encoder.block.0.0.attention.self.query.weight" in opened.keys()  # noqa: SIM118
    loaded = step_of("segformer-b4", size="tiny", weights=str(file))
    expected = step.model.state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in loaded.model.state_dict().items())


@MODELS
def test_the_encoder_alone_may_come_from_a_checkpoint(tmp_path: Path, workload: Workload) -> None:
    heads = ("decode_head.", "decoder.", "segmentation_head.")
    step = step_of(workload.name, size="tiny", seed=5)
    encoder = {name: value for name, value in step.model.state_dict().items() if not name.startswith(heads)}
    torch.save(encoder, tmp_path / "encoder.pt")
    loaded = step_of(workload.name, size="tiny", weights=str(tmp_path / "encoder.pt")).model.state_dict()
    assert all(torch.equal(loaded[name], value) for name, value in encoder.items())
    torch.save(dict(list(encoder.items())[1:]), tmp_path / "less.pt")
    with pytest.raises(RequestError, match="1 tensors of the model are not in it"):
        step_of(workload.name, size="tiny", weights=str(tmp_path / "less.pt"))


def test_deeplab_without_its_library_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "segmentation_models_pytorch", None)
    workload = find_workload("deeplabv3plus-r101")
    with pytest.raises(ModuleNotFoundError) as caught:
        build_task(workload, dict(workload.fixed))
    said = describe(caught.value, module=workload.module)
    assert said.kind == "missing-library"
    assert "segmentation_models_pytorch, which is not installed here: pip install 'prony[scenes]'" in said.message
