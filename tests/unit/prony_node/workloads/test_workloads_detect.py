"""Faster R-CNN: torchvision's model, trained and asked with padded batches, its boxes exact in every precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from prony_node.backends.torch.compiling import count_flops
from prony_node.backends.torch.model import distance, reference_answer
from prony_node.backends.torch.step import Step
from prony_node.backends.torch.task import Task
from prony_node.contract import RequestError
from prony_node.contract.machine import Machine
from prony_node.contract.settings import Value
from prony_node.measure.checks import OUTPUT_BOUND
from prony_node.workloads import build_task, find_workload
from prony_node.workloads.detect import RATIOS, found_boxes, full_model, image_list, target_list, wide_anchors

CPU = torch.device("cpu")
WORKLOAD = find_workload("fasterrcnn-r50-fpn")


def settings_of(**given: Value) -> dict[str, Value]:
    return WORKLOAD.effective(WORKLOAD.parse({"size": "tiny", "batch_size": 4, **given}), Machine("cpu", None, 1))


def step_of(**given: Value) -> tuple[Task, Step]:
    settings = settings_of(**given)
    task = build_task(WORKLOAD, settings)
    return task, Step(task, settings, CPU)


def test_the_full_model_is_torchvision_s_own() -> None:
    from torchvision.models.detection import fasterrcnn_resnet50_fpn

    def shapes(model: nn.Module) -> dict[str, torch.Size]:
        return {name: tensor.shape for name, tensor in model.state_dict().items()}

    with torch.device("meta"):
        theirs = fasterrcnn_resnet50_fpn(weights=None, weights_backbone=None, num_classes=91)
        ours, frozen = full_model(91, frozen_norms=False), full_model(91, frozen_norms=True)
    assert shapes(ours) == shapes(theirs)
    for name in ("min_size", "max_size", "image_mean", "image_std", "size_divisible"):
        assert getattr(ours.transform, name) == getattr(theirs.transform, name)  # 800 at the shorter side, at most 1333
    assert ours.rpn.anchor_generator.sizes == theirs.rpn.anchor_generator.sizes
    # A published checkpoint was trained with frozen norms, which count no batches.
    published = {name: shape for name, shape in shapes(theirs).items() if not name.endswith("num_batches_tracked")}
    assert shapes(frozen) == published
    assert sum(parameter.numel() for parameter in frozen.parameters()) == 41_755_286  # as torchvision states it


@pytest.mark.parametrize(
    ("given", "expected"), [({}, [0.0025] * 3), ({"data": "coco", "until": "map>=0.3"}, [0.0025, 0.02, 0.02])]
)
def test_only_a_run_with_a_warm_up_has_the_recipe_s_rate(given: dict[str, Value], expected: list[float]) -> None:
    settings = [settings_of(size="full", batch_size=batch) | given for batch in (2, 16, 76)]
    assert [build_task(WORKLOAD, one).learning_rate for one in settings] == pytest.approx(expected)


def test_it_learns_what_it_has_not_seen() -> None:
    task, step = step_of()
    step.finish_model()
    held_out = task.sample(torch.Generator().manual_seed(0), 16)
    assert held_out[4].min() == 0  # an image without a box among them
    before = step.held_out_loss(held_out)
    generator = torch.Generator().manual_seed(1)
    batches = [step.place(task.sample(generator, 4)) for _ in range(40)]
    assert len({batch[0].shape for batch in batches}) > 1
    step.prepare(batches[0])
    for batch in batches:
        step(batch)
    assert step.held_out_loss(held_out) < 0.6 * before


def test_an_answer_is_one_tensor_of_the_best_boxes() -> None:
    task, step = step_of(mode="infer")
    step.model.roi_heads.score_thresh = 0.0  # random weights are sure of nothing
    step.finish_model()
    batch = step.place(task.sample(torch.Generator().manual_seed(1), 4))
    step.prepare(batch)
    found = step.output
    assert found is not None
    assert found.shape == (4, 100, 6)
    for rows, (height, width) in zip(found, batch[1].tolist(), strict=True):
        kept = rows[rows[:, 4] > 0]
        assert len(kept) > 0
        assert rows[len(kept) :].count_nonzero() == 0
        assert (kept[:, 4].diff() <= 0).all()
        assert kept[:, :4].min() >= 0
        assert (kept[:, 2] <= width).all()
        assert (kept[:, 3] <= height).all()
        assert ((kept[:, 5] >= 1) & (kept[:, 5] <= 3)).all()


def test_lists_are_made_of_a_padded_batch() -> None:
    task, _ = step_of()
    batch = task.sample(torch.Generator().manual_seed(2), 8)
    images, targets = image_list(batch), target_list(batch)
    assert [list(image.shape[1:]) for image in images] == batch[1].tolist()
    assert [len(target["boxes"]) for target in targets] == batch[4].tolist()
    empty = {"boxes": torch.zeros(0, 4), "scores": torch.zeros(0), "labels": torch.zeros(0, dtype=torch.int64)}
    assert found_boxes([empty]).count_nonzero() == 0


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_inference_in_a_low_precision_is_held_to_fp32_where_that_has_a_meaning(precision: str) -> None:
    task, step = step_of(mode="infer", precision=precision)
    assert task.compared is not None
    batch = task.sample(torch.Generator().manual_seed(3), 2)
    reference = reference_answer(task, step.model, batch)
    step.finish_model()  # folds batch norms, lowers the precision
    step.prepare(step.place(batch))
    with torch.no_grad():
        error = distance(task.compared(step.model, step.place(batch)).float(), reference, by_row=True)
        assert (precision == "fp32") == (error < 1e-5)
        assert error <= OUTPUT_BOUND[precision]
        step.model.roi_heads.box_predictor.bbox_pred.weight.mul_(1.2)  # the smallest of its parts gone wrong
        wrong = distance(task.compared(step.model, step.place(batch)).float(), reference, by_row=True)
    assert wrong > OUTPUT_BOUND[precision]


def test_boxes_keep_their_digits_in_bf16() -> None:
    from torchvision.models.detection.anchor_utils import AnchorGenerator
    from torchvision.models.detection.image_list import ImageList

    images = ImageList(torch.empty(1, 3, 1344, 64), [(1344, 64)])
    theirs = AnchorGenerator(((32,), (64,)), (RATIOS,) * 2)
    maps = [torch.empty(1, 8, 1344 // stride, 64 // stride) for stride in (4, 8)]
    exact = theirs(images, maps)[0]
    wide = wide_anchors((32, 64))
    assert torch.equal(wide(images, maps)[0], exact)  # in fp32 nothing differs
    assert torch.equal(wide(images, [features.bfloat16() for features in maps])[0], exact)
    rounded = theirs(images, [features.bfloat16() for features in maps])[0]
    assert (rounded.float() - exact).abs().max() >= 2  # pixels, which is why
    boxes = torch.tensor([[1001.0, 1003.0, 1010.0, 1021.0]])
    coder = full_model_on_meta().roi_heads.box_coder
    assert torch.equal(coder.decode_single(torch.zeros(1, 4, dtype=torch.bfloat16), boxes), boxes)


def full_model_on_meta() -> Any:
    with torch.device("meta"):
        return full_model(91, frozen_norms=False)


def test_training_in_bf16_gives_nearly_the_loss_of_fp32() -> None:
    losses = []
    for precision in ("fp32", "bf16"):
        task, step = step_of(precision=precision)
        step.finish_model()
        torch.manual_seed(0)  # which anchors and proposals are judged is drawn
        losses.append(step.held_out_loss(task.sample(torch.Generator().manual_seed(4), 8)))
    assert losses[1] == pytest.approx(losses[0], rel=0.05)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"graphs": "on"}, "a graph repeats one shape"),
        ({"compile": "max-autotune"}, "compile=default compiles its backbone and the head"),
        ({"precision": "bf16-pure"}, "precision=bf16 keeps boxes in fp32"),
        ({"data": "./coco", "decode": "device"}, "decode=cpu"),
        ({"data": "generated", "data_format": "shards"}, "data_format=files"),
        ({"data": "./coco", "until": "accuracy>=0.5"}, "unknown score 'accuracy'"),
        ({"data": "./coco", "until": "map>=37"}, "did you mean map>=0.37"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(asked: dict[str, str], says: str) -> None:
    with pytest.raises(RequestError, match=says):
        WORKLOAD.parse(asked)


def test_its_defaults_on_a_device_compile_parts_and_capture_a_graph_a_shape() -> None:
    on_cuda = WORKLOAD.effective({}, Machine("cuda", 80.0, 8))
    assert {name: on_cuda[name] for name in ("batch_size", "compile", "graphs", "precision", "memory_format")} == {
        "batch_size": 2, "compile": "reduce-overhead", "graphs": False, "precision": "bf16",
        "memory_format": "channels_last",
    }  # fmt: skip
    assert on_cuda["kernels"] == "batched-assignment,masked-roi-align,triton-nms"
    plain = WORKLOAD.effective(WORKLOAD.parse({"preset": "plain"}), Machine("cuda", 80.0, 8))
    assert (plain["kernels"], plain["compile"]) == ("library", "off")
    for mode in ("train", "infer"):
        assert (
            count_flops(build_task(WORKLOAD, settings_of(mode=mode)), training=mode == "train", recompute=False) is None
        )


@pytest.mark.parametrize(
    "asked",
    [{"batch_size": "5"}, {"batch_size": "auto"}, {"devices": "2"}, {"data": "host"}, {"data": "generated"},
     {"grad_accumulation": "2"}, {"global_batch": "2"}, {"size": "tiny"}],
    ids=str,
)  # fmt: skip
def test_where_shapes_are_new_or_the_device_has_enough_to_do_nothing_is_captured(asked: dict[str, str]) -> None:
    """A graph a shape is for steps that wait for the host, on batches that come again."""
    on_cuda = WORKLOAD.effective(WORKLOAD.parse(asked), Machine("cuda", 80.0, 8))
    assert (on_cuda["compile"], on_cuda["kernels"]) == ("default", "batched-assignment,triton-nms")


def test_torchvision_s_own_losses_can_be_had_on_a_device() -> None:
    on_cuda = WORKLOAD.effective(WORKLOAD.parse({"kernels": "library"}), Machine("cuda", 80.0, 8))
    assert on_cuda["kernels"] == "library"
    with pytest.raises(RequestError, match="triton-nms is a part of batched-assignment"):
        WORKLOAD.parse({"kernels": "triton-nms"})


def test_inference_is_torchvision_s_own() -> None:
    """Matching, suppression and pooling are replaced in the losses alone."""
    assert "kernels" not in WORKLOAD.effective({"mode": "infer"}, Machine("cuda", 80.0, 8))
    with pytest.raises(RequestError, match="batched-assignment has no meaning with mode=infer"):
        WORKLOAD.parse({"mode": "infer", "kernels": "batched-assignment"})


def test_compile_takes_the_parts_that_are_alike_for_any_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[tuple[object, dict[str, object]]] = []

    def recorded(function: Callable[..., Tensor], **options: object) -> Callable[..., Tensor]:
        compiled.append((function.__self__, options))  # type: ignore[attr-defined]
        return function

    monkeypatch.setattr(torch, "compile", recorded)
    task, step = step_of(compile="default")
    step.finish_model()
    names = list(step.model.state_dict())
    step.prepare(step.place(task.sample(torch.Generator().manual_seed(1), 4)))
    parts = (step.model.backbone, step.model.rpn.head)
    assert compiled == [(parts[0], {"mode": "default"}), (parts[1], {"mode": "default", "dynamic": True})]
    assert list(step.model.state_dict()) == names  # a checkpoint has the same names
