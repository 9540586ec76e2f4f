"""Autoencoders: what each is, torch-free, with its parameters and FLOPs counted by hand."""

from __future__ import annotations

from prony_node.workloads.config import Workload

SIDE = 28  # pixels of an image's side; halved twice on the way in, doubled twice on the way out
WIDTHS, BOTTLENECK = (32, 64, 128), 32  # channels at 28, 14 and 7 pixels; numbers that describe an image
TINY_WIDTHS, TINY_BOTTLENECK = (8, 16, 32), 16


def _products(widths: tuple[int, int, int]) -> list[tuple[int, int]]:
    """Every 3x3 convolution but the last: its pairs of channels, and the pixels of its output."""
    first, middle, last = widths
    fine, half, coarse = SIDE**2, (SIDE // 2) ** 2, (SIDE // 4) ** 2
    ways = [(1 * first, fine), (first * middle, half), (middle * last, coarse)]  # in
    ways += [(last * middle, half), (middle * first, fine)]  # and out
    blocks = [(width**2, pixels) for width, pixels in ((first, fine), (middle, half), (last, coarse))]
    return ways + 4 * blocks  # a block of two convolutions on either side


def autoencoder_parameters(widths: tuple[int, int, int], bottleneck: int) -> int:
    first, middle, last = widths
    described = last * (SIDE // 4) ** 2
    convolutions = 9 * sum(pairs for pairs, _ in _products(widths)) + 9 * first + 1
    norms = 2 * (first + middle + last + middle + first + 4 * sum(widths))
    return convolutions + norms + 2 * described * bottleneck + bottleneck + described


def autoencoder_flops(widths: tuple[int, int, int], bottleneck: int) -> int:
    """Of the forward pass of an image, a multiply-add being two."""
    described = widths[2] * (SIDE // 4) ** 2
    convolutions = 9 * sum(pairs * pixels for pairs, pixels in _products(widths)) + 9 * widths[0] * SIDE**2
    return 2 * (convolutions + 2 * described * bottleneck)


RECONSTRUCT_WORKLOADS = (
    Workload(
        name="compression-autoencoder",
        help="residual convolutional autoencoder of 28x28 grey images, 32 latent numbers",
        module="prony_node.workloads.reconstruct",
        unit="images",
        parameters=autoencoder_parameters(WIDTHS, BOTTLENECK),
        source="Prony's own, after the workload of that name in Nasari et al. (PEARC 2022)",
        batch={"train/cpu": 32, "infer/cpu": 64, "train/accelerator": 4096, "infer/accelerator": 8192},
        memory_gib={"train": 12.0, "infer": 6.0},
        optimizer="adam",
        memory_format="channels_last",
        epoch_samples=60_000,  # MNIST's
        shape={"image_size": SIDE, "channels": 1},
        flops=autoencoder_flops(WIDTHS, BOTTLENECK),
        flops_source="Prony's own model, counted by hand layer by layer",
        tiny={},
        reads="grey",
        scores=("loss",),
    ),
)
