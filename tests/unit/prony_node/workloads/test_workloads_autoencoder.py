"""The autoencoder is the model that its config counts, learns to make unseen images again, and answers with them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from prony_node.backends.torch.compiling import count_flops
from prony_node.backends.torch.step import Step
from prony_node.backends.torch.task import Task
from prony_node.contract.machine import Machine
from prony_node.contract.settings import Value
from prony_node.data.synthetic import blend_sampler
from prony_node.workloads import WORKLOADS, build_task, reconstruct_config

CPU = torch.device("cpu")
WORKLOAD = WORKLOADS["compression-autoencoder"]


def make(**given: Value) -> tuple[dict[str, Value], Task]:
    settings = WORKLOAD.effective({"device": "cpu", "size": "tiny", **given}, Machine("cpu", None, 1))
    return settings, build_task(WORKLOAD, settings)


@pytest.mark.parametrize(
    ("size", "widths", "bottleneck"),
    [
        ("full", reconstruct_config.WIDTHS, reconstruct_config.BOTTLENECK),
        ("tiny", reconstruct_config.TINY_WIDTHS, reconstruct_config.TINY_BOTTLENECK),
    ],
)
def test_parameters_and_flops_are_those_counted_by_hand(
    size: str, widths: tuple[int, int, int], bottleneck: int
) -> None:
    _, task = make(size=size)
    with torch.device("meta"):
        model = task.model()
    count = sum(parameter.numel() for parameter in model.parameters())
    assert count == reconstruct_config.autoencoder_parameters(widths, bottleneck)
    forward = count_flops(task, training=False, recompute=False).per_sample
    assert forward == reconstruct_config.autoencoder_flops(widths, bottleneck)
    # Twice as much again for the gradients, but for none by the images themselves.
    first = 2 * 9 * widths[0] * 28**2
    assert count_flops(task, training=True, recompute=False).per_sample == 3 * forward - first
    if size == "full":
        assert (count, forward) == (1_369_185, 247_367_680) == (WORKLOAD.parameters, WORKLOAD.flops)


def test_it_learns_to_make_unseen_images_again() -> None:
    """Better than the mean image, the best answer of a model that has learned nothing of the single one."""
    settings, task = make(batch_size=8)
    step = Step(task, settings, CPU)
    step.finish_model()
    held = step.place(task.sample(torch.Generator().manual_seed(99), 64))
    before = step.held_out_loss(held)
    generator = torch.Generator().manual_seed(0)
    step.prepare(step.place(task.sample(generator, 8)))
    for _ in range(60):
        step(step.place(task.sample(generator, 8)))
    step.model.eval()
    after = step.held_out_loss(held)
    trivial = float(F.mse_loss(held[0].mean(0, keepdim=True).expand_as(held[0]), held[0]))
    assert after < 0.8 * trivial < before


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_inference_answers_the_reconstruction(precision: str) -> None:
    settings, task = make(mode="infer", precision=precision)
    step = Step(task, settings, CPU)
    images = task.sample(torch.Generator().manual_seed(1), 4)
    with torch.no_grad():
        reference = task.predict(step.model.eval(), images)
    step.finish_model()  # folds the batch norms
    assert not [module for module in step.model.modules() if isinstance(module, torch.nn.BatchNorm2d)]
    step.prepare(step.place(images))
    assert step.output is not None
    assert step.output.shape == images[0].shape == (4, 1, 28, 28)
    error = (step.output.float() - reference).norm() / reference.norm()
    assert error < (1e-5 if precision == "fp32" else 3e-2)


def test_labels_beside_the_images_are_not_looked_at() -> None:
    _, task = make()
    images = task.sample(torch.Generator().manual_seed(1), 4)[0]
    model = task.model().eval()
    assert task.loss(model, (images,)) == task.loss(model, (images, torch.zeros(4, dtype=torch.long)))


def test_pictures_are_blends_of_few_patterns_and_the_same_for_a_seed() -> None:
    sample = blend_sampler(1, 28)
    (pictures,), (again,) = (sample(torch.Generator().manual_seed(3), 200) for _ in range(2))
    assert torch.equal(pictures, again)
    assert 0 <= float(pictures.min()) < 0.1 < 0.9 < float(pictures.max()) <= 1
    (other,) = blend_sampler(1, 28)(torch.Generator().manual_seed(4), 200)
    directions = torch.linalg.svd(torch.logit(pictures, 0.01).flatten(1), full_matrices=False).Vh[:8]
    unseen = torch.logit(other, 0.01).flatten(1)
    left = unseen - unseen @ directions.T @ directions
    assert float(left.square().mean() / unseen.square().mean()) < 0.05  # 8 of 784 directions hold nearly all
