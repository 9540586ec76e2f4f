"""Images decoded on a device beside the step: right pixels, right order, however busy the stream of the step is."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from prony_node.data.generated import generate
from prony_node.data.loader import Encoded, file_loader
from prony_node.data.source import open_dataset

pytestmark = pytest.mark.gpu
BATCHES = 12


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Encoded:
    folder = tmp_path_factory.mktemp("generated")
    generate("imagenet", folder, 96, classes=8)
    opened = open_dataset(folder)
    assert isinstance(opened, Encoded)
    return opened


def batches(images: Encoded, decode: str, device: torch.device, busy: bool = False) -> list[tuple[Tensor, ...]]:
    """Some batches, kept on the device until the end; a busy consumer queues long work before it reads each."""
    source = file_loader(images, 32, workers=2, decode=decode, device=device, pin_memory=True, seed=5, sends=True)
    matrix = torch.randn(4096, 4096, device=device)
    kept = []
    try:
        for batch in itertools.islice(source, BATCHES):
            if busy:
                for _ in range(20):
                    matrix = (matrix @ matrix).tanh()
            kept.append(tuple(tensor.clone() for tensor in batch))  # reads it after that work, on this stream
            del batch
    finally:
        source.close()
    torch.cuda.synchronize()
    return kept


@pytest.mark.parametrize("decode", ["device", "both"])
def test_pixels_are_near_those_of_the_cpu_and_labels_the_same(
    images: Encoded, device: torch.device, decode: str
) -> None:
    pairs = zip(batches(images, decode, device), batches(images, "cpu", device), strict=True)
    for (pixels, labels), (expected, also) in pairs:
        assert torch.equal(labels, also)
        assert (pixels.float() - expected.float()).abs().mean() < 3  # two decoders do not round alike


def test_what_the_workers_decode_arrives_unchanged(images: Encoded, device: torch.device) -> None:
    """Copied on a stream beside the step's."""
    straight = file_loader(images, 32, workers=2, decode="cpu", seed=5)
    for (pixels, labels), (expected, also) in zip(batches(images, "cpu", device, busy=True), straight, strict=False):
        assert torch.equal(pixels.cpu(), expected)
        assert torch.equal(labels.cpu(), also)
    straight.close()


@pytest.mark.parametrize("decode", ["device", "cpu"])
def test_a_busy_stream_reads_what_was_decoded_for_it(images: Encoded, device: torch.device, decode: str) -> None:
    """Memory that went back too early would hold another image by the time it is read."""
    idle, busy = (batches(images, decode, device, busy=busy) for busy in (False, True))
    for one, other in zip(idle, busy, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
