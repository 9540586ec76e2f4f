"""DINO as a workload: it is as large as the paper's, learns, finds what it learned, and refuses what it cannot do."""

from __future__ import annotations

import sys

import pytest
import torch

from prony_node.backends.torch import cuda
from prony_node.backends.torch.cuda import Captured
from prony_node.backends.torch.step import Step
from prony_node.backends.torch.task import Batch
from prony_node.contract import RequestError
from prony_node.contract.machine import Machine
from prony_node.contract.settings import Value
from prony_node.contract.typed import encode
from prony_node.data.coco import Truth, found_in, mean_average_precision
from prony_node.run.rank import describe
from prony_node.workloads import build_task, find_workload
from prony_node.workloads.dino.boxes import Targets, ToHost, corners
from prony_node.workloads.dino.config import FULL, TINY
from prony_node.workloads.dino.model import level_shapes
from prony_node.workloads.dino.task import detection_loss, detections, smooth_answers

CPU = torch.device("cpu")
WORKLOAD = find_workload("dino-swin-l")
PUBLISHED_PARAMETERS = 218e6  # Swin-L, four scales


def step_of(**given: Value) -> Step:
    settings = WORKLOAD.effective(WORKLOAD.parse({"device": "cpu", "size": "tiny", **given}), Machine("cpu", None, 2))
    step = Step(build_task(WORKLOAD, settings), settings, CPU)
    step.finish_model()
    return step


def batch_of(step: Step, seed: int, count: int) -> Batch:
    return step.place(step.task.sample(torch.Generator().manual_seed(seed), count))


def average_precision(step: Step, batch: Batch) -> float:
    answered = step.scores(batch)["found"]
    images = []
    for rows, boxes, labels, count in zip(answered, *batch[2:], strict=True):
        truths = [Truth(int(label), box.tolist()) for box, label in zip(boxes[:count], labels[:count], strict=True)]
        images.append((truths, found_in(rows.tolist())))
    return mean_average_precision(images)


def test_it_is_as_large_as_the_paper_says() -> None:
    assert WORKLOAD.parameters == pytest.approx(PUBLISHED_PARAMETERS, rel=0.03)  # another test counts the model's own
    with torch.device("meta"):
        model = build_task(WORKLOAD, {}).model()
    shares = {name: sum(one.numel() for one in part.parameters()) / 1e6 for name, part in model.named_children()}
    assert shares["backbone"] == pytest.approx(199, abs=1)  # Swin-L's 195 and what makes four levels of it
    assert (len(model.encoder.layers), len(model.decoder.layers), len(model.selection.contents)) == (6, 6, 900)
    assert FULL.levels == FULL.points == 4


def test_images_are_scaled_as_the_paper_scales_them() -> None:
    sizes = build_task(WORKLOAD, {}).sample(torch.Generator().manual_seed(0), 8)[1]
    shorter, longer = sizes.amin(1), sizes.amax(1)
    assert (longer <= 1333).all()
    assert ((shorter == 800) | (longer == 1333)).all()
    assert (shorter > 700).all()


def test_it_learns_what_it_did_not_see() -> None:
    step = step_of()
    held_out = batch_of(step, 7, 8)
    before = step.held_out_loss(held_out)
    batches = [batch_of(step, seed, 4) for seed in range(15)]
    step.prepare(batches[0])
    for batch in batches[1:]:
        step(batch)
    assert step.held_out_loss(held_out) < 0.75 * before


def test_it_overfits_eight_images() -> None:
    step = step_of()
    batch = batch_of(step, 3, 8)
    assert average_precision(step, batch) < 0.05
    step.prepare(batch)
    reached = 0.0
    for number in range(1, 61):
        step(batch)
        if number % 10 == 0 and (reached := average_precision(step, batch)) > 0.5:
            break
    assert reached > 0.5


def test_the_answer_is_the_likeliest_classes_of_all_queries() -> None:
    step = step_of(mode="infer")
    batch = batch_of(step, 1, 2)
    with torch.no_grad():
        found = detections(step.model, batch, TINY.answers)
        matched = step.model(batch[0], batch[1]).matched
    assert found.shape == (2, TINY.answers, 6)
    for image in range(2):
        height, width = batch[1][image].tolist()
        every = [
            (float(score.sigmoid()), label, box)
            for box, logits in zip(matched.boxes[-1, image].sigmoid(), matched.class_logits[-1, image], strict=True)
            for label, score in enumerate(logits)
        ]
        best = sorted(every, key=lambda one: -one[0])[: TINY.answers]
        for row, (score, label, (x, y, wide, high)) in zip(found[image], best, strict=True):
            left, top, right, bottom = x - wide / 2, y - high / 2, x + wide / 2, y + high / 2
            expected = [left * width, top * height, right * width, bottom * height, score, label]
            torch.testing.assert_close(row, torch.tensor([float(one) for one in expected]), atol=1e-3, rtol=1e-4)


def test_what_lies_in_the_padding_is_not_seen() -> None:
    step = step_of(mode="infer")
    batch = batch_of(step, 1, 4)
    images, sizes = batch[0].clone(), batch[1]
    assert (sizes.amax(0) > sizes.amin(0)).any()
    for image, (height, width) in zip(images, sizes.tolist(), strict=True):
        image[:, height:], image[:, :, width:] = 7.0, -3.0
    with torch.no_grad():
        clean, dirty = (smooth_answers(step.model, (one, *batch[1:])) for one in (batch[0], images))
    assert not torch.equal(batch[0], images)
    torch.testing.assert_close(clean, dirty)


def test_padding_gives_no_gradient_that_an_optimizer_would_not_forget() -> None:
    """A token of the padding that is a vector of zeros: every layer norm on the way multiplies its gradient by 300."""
    step = step_of()
    batch = next(found for seed in range(9) if len({*map(tuple, (found := batch_of(step, seed, 2))[1].tolist())}) == 2)
    detection_loss(step.model, batch).backward()
    norms = {name: float(one.grad.norm()) for name, one in step.model.named_parameters() if one.grad is not None}
    assert max(norms.values()) < 1e3, max(norms, key=lambda name: norms[name])


def test_a_step_waits_for_the_device_once_and_an_inference_never() -> None:
    training, inference = step_of(), step_of(mode="infer")
    assert training.task.synchronisations is not None
    before = ToHost.waits
    detection_loss(training.model, batch_of(training, 1, 2))
    assert training.task.synchronisations() - before == 1  # for the costs of matching
    inference.prepare(batch_of(inference, 1, 2))
    assert inference.task.synchronisations is not None
    assert inference.task.synchronisations() - before == 1


@pytest.mark.parametrize("mode", ["train", "infer"])
def test_bf16_answers_nearly_the_same(mode: str) -> None:
    exact, low = step_of(mode=mode), step_of(mode=mode, precision="bf16")
    batch = batch_of(exact, 1, 4)
    if mode == "train":
        torch.manual_seed(1)
        loss = exact.held_out_loss(batch)
        torch.manual_seed(1)  # the same noise on the same boxes
        assert low.held_out_loss(batch) == pytest.approx(loss, rel=0.1)
        with low.autocast():
            assert detection_loss(low.model, batch).dtype == torch.float32
    else:
        with torch.no_grad():
            one, other = smooth_answers(exact.model, batch), smooth_answers(low.model, low.place(batch))
        distance = (one - other).norm(dim=1) / one.norm(dim=1)
        assert distance.max() < 0.06
        assert distance[0] > 0  # the model is another one, so what was compared is not the same twice


def test_images_without_any_box_have_a_loss() -> None:
    step = step_of()
    images, sizes, boxes, labels, counts = batch_of(step, 1, 2)
    empty = (images, sizes, torch.zeros_like(boxes), torch.zeros_like(labels), torch.zeros_like(counts))
    loss = detection_loss(step.model, empty)
    loss.backward()
    assert loss.isfinite()


def test_denoising_queries_tell_the_others_nothing() -> None:
    """What they were made of is the answer: seen by the others, it would be learned to be copied."""
    step = step_of()
    batch = batch_of(step, 1, 2)
    with torch.no_grad():
        beside, alone = step.model(*batch[:2], Targets.of(batch)), step.model(*batch[:2])
    assert beside.noised is not None
    torch.testing.assert_close(beside.matched.class_logits, alone.matched.class_logits, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(beside.matched.boxes, alone.matched.boxes, atol=1e-4, rtol=1e-4)


def test_denoising_queries_start_from_the_boxes_that_they_are_to_mend() -> None:
    """Before anything is learned no layer changes a box, so that what comes out is what went in."""
    step = step_of()
    batch = batch_of(step, 1, 4)
    targets = Targets.of(batch)
    with torch.no_grad():
        noised = step.model(*batch[:2], targets).noised
    assert noised.boxes.shape[0] == TINY.decoder_layers
    boxes = corners(noised.boxes[-1].sigmoid()).unflatten(1, (-1, 2, targets.most))
    moved = (boxes - corners(targets.boxes)[:, None, None]).abs() / (targets.boxes[..., 2:].repeat(1, 1, 2) / 2)[
        :, None, None
    ]
    for image, count in enumerate(targets.counts):
        assert (moved[image, :, 0, :count] <= 0.4 + 0.05).all()  # and the slack of a logit near the edge
        assert (moved[image, :, 1, :count].amax(-1) > 0.4).all()


def test_recomputing_gives_the_same_gradients() -> None:
    gradients = []
    for recompute in (False, True):
        step = step_of(recompute=recompute)
        torch.manual_seed(1)
        detection_loss(step.model, batch_of(step, 1, 2)).backward()
        gradients.append([one.grad.clone() for one in step.model.parameters()])
    assert step.model.encoder.recompute
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-3)


def test_captured_parts_give_the_same_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """A recording is run again here; on a device it is a graph (tests/gpu/test_gpu_dino.py)."""
    monkeypatch.setattr(cuda, "recorder", lambda: lambda work: (work(), work)[1])
    step, gradients = step_of(), {}
    batches = [batch_of(step, seed, 2) for seed in range(3)]
    assert len({batch[0].shape for batch in batches}) > 1
    for captured in (False, True):
        if captured:
            step.model.capture(Captured)
        for number, batch in enumerate(batches):
            step.model.zero_grad(set_to_none=True)
            torch.manual_seed(1)
            detection_loss(step.model, batch).backward()
            gradients[captured, number] = [one.grad.clone() for one in step.model.parameters()]
    for number in range(len(batches)):
        for one, other in zip(gradients[False, number], gradients[True, number], strict=True):
            torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-3)


def test_levels_have_the_shapes_of_the_maps() -> None:
    model = step_of().model
    for height, width in ((64, 96), (65, 95), (71, 90), (33, 129)):
        with torch.no_grad():
            maps = model.backbone(torch.rand(1, 3, height, width), torch.tensor([[height, width]]))
        assert level_shapes(height, width, 4) == [tuple(found.shape[-2:]) for found in maps]


def test_five_scales_begin_at_a_stride_of_four_and_train() -> None:
    step = step_of(scales="5", batch_size=2)
    batch = batch_of(step, 3, 2)
    height, width = batch[0].shape[-2:]
    with torch.no_grad():
        maps = step.model.backbone(*batch[:2])
        tokens, levels = step.model.encode(*batch[:2])
    shapes = [tuple(found.shape[-2:]) for found in maps]
    assert shapes == [(-(-height // stride), -(-width // stride)) for stride in (4, 8, 16, 32, 64)] == levels.shapes
    assert tokens.shape[1] == sum(rows * columns for rows, columns in shapes)
    assert len(step.model.encoder.level_embedding) == 5
    step.prepare(batch)
    before = {name: one.detach().clone() for name, one in step.model.named_parameters()}
    step(batch)
    assert step.output is not None
    assert step.output.isfinite()
    moved = {name for name, one in step.model.named_parameters() if not torch.equal(one, before[name])}
    assert {name for name in before if name.startswith(("backbone.projections.0.", "encoder.level_embedding"))} <= moved


def test_five_scales_have_parameters_of_their_own_and_no_default_that_was_measured_with_four() -> None:
    assert WORKLOAD.known_parameters({"scales": "4"}) == WORKLOAD.parameters
    assert WORKLOAD.known_parameters({"scales": "5"}) is None
    with torch.device("meta"):
        model = build_task(WORKLOAD, {"scales": "5"}).model()
    assert [project[0].in_channels for project in model.backbone.projections] == [192, 384, 768, 1536]
    large = Machine("cuda", 141.0, 16)
    assert WORKLOAD.effective({"batch_size": 1}, large)["graphs"] is True
    assert WORKLOAD.effective({"batch_size": 1, "scales": "5"}, large)["graphs"] is False


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"graphs": "on", "mode": "infer"}, "captures the layers of dino-swin-l in training alone"),
        ({"graphs": "on", "recompute": "on"}, "which recompute=on runs twice; use one"),
        ({"graphs": "on", "grad_accumulation": "2"}, "cannot be accumulated; use graphs=off"),
        ({"graphs": "on", "global_batch": "4"}, "cannot be accumulated; use graphs=off"),
        ({"graphs": "on", "device": "cpu"}, "graphs=on needs a device with graphs"),
        ({"compile": "default"}, "no two batches of dino-swin-l have the same shape; leave it out"),
        ({"kernels": "triton-deformable-attention", "device": "cpu"}, "is for device=cuda or xpu, not cpu"),
        ({"kernels": "triton-deformable-attention", "precision": "fp64"}, "has its sums in fp32"),
        ({"precision": "bf16-pure"}, "a corner of a box at 600 pixels would be rounded"),
    ],
)
def test_what_it_cannot_do_is_refused(given: dict[str, Value], said: str) -> None:
    with pytest.raises(RequestError, match=said):
        WORKLOAD.parse(given)


@pytest.mark.parametrize("library", ["scipy", "transformers"])
def test_a_library_that_is_not_there_is_named(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ModuleNotFoundError) as caught:
        build_task(WORKLOAD, {"size": "tiny"})
    said = f"this workload needs {library}, which is not installed here: pip install 'prony[scenes]'"
    assert encode(describe(caught.value, module=WORKLOAD.module)) == {"kind": "missing-library", "message": said}


def test_its_defaults_on_a_device_suit_images_of_any_shape() -> None:
    settings = WORKLOAD.effective({}, Machine("cuda", 141.0, 8))
    assert (settings["compile"], settings["graphs"], settings["precision"]) == ("off", True, "bf16")
    assert (settings["batch_size"], settings["optimizer"]) == (2, "adamw")
    assert settings["kernels"] == "triton-deformable-attention"


@pytest.mark.parametrize(
    ("given", "gib"),
    [
        ({}, 48.0),  # the same memory again for graphs is not there
        ({"batch_size": 4}, 80.0),
        ({"memory_cap": 40.0}, 141.0),
        ({"batch_size": 5}, 141.0),
        ({"mode": "infer", "batch_size": 2}, 141.0),
        ({"recompute": True}, 141.0),
        ({"grad_accumulation": 2}, 141.0),
        ({"data": "host"}, 141.0),  # a shape may come for the first time in any step
        ({"devices": 2}, 141.0),
        ({"preset": "plain"}, 141.0),
        ({"graphs": False}, 141.0),
    ],
    ids=str,
)
def test_nothing_is_captured_by_default_where_that_cannot_be_or_does_not_pay(
    given: dict[str, Value], gib: float
) -> None:
    assert not WORKLOAD.effective(given, Machine("cuda", gib, 8))["graphs"]


@pytest.mark.parametrize(
    ("given", "device"), [({}, "cpu"), ({"preset": "plain"}, "cuda"), ({"precision": "fp64"}, "cuda")]
)
def test_torch_samples_where_the_kernel_was_not_shown_to_pay(given: dict[str, Value], device: str) -> None:
    assert WORKLOAD.effective(WORKLOAD.parse(given), Machine(device, 141.0, 8))["kernels"] == "library"
