"""The kernel of deformable attention's sampling answers, and learns, as transformers' plain form does.

Triton's interpreter runs it on a CPU; it is chosen when Triton is imported, so the comparison has a process of its own,
alone first and then through a layer.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from torch import nn

from prony_node.workloads.detect_config import Size
from prony_node.workloads.dino import KernelSampling, use_kernel
from prony_node.workloads.dino_model import Decoder, DeformableAttention

SRC = Path(__file__).parents[5] / "src"
COMPARE = """
import torch
from transformers.models.deformable_detr.modeling_deformable_detr import MultiScaleDeformableAttention
from prony_node.workloads.dino import KernelSampling

shapes = [(5, 7), (3, 4), (1, 1)]  # the queries are no whole number of blocks, places lie beyond every edge
images, queries, heads, points, width = 2, 37, 2, 3, 16
counts = [high * wide for high, wide in shapes]
starts = torch.tensor([0, *counts[:-1]]).cumsum(0)
for kind, bound in ((torch.float32, 1e-5), (torch.bfloat16, 1e-2)):
    found = []
    for sampling in (MultiScaleDeformableAttention(), KernelSampling()):
        torch.manual_seed(1)
        values = torch.randn(images, sum(counts), heads, width).to(kind).requires_grad_()
        places = (torch.rand(images, queries, heads, len(shapes), points, 2) * 1.4 - 0.2).requires_grad_()
        weights = torch.rand(images, queries, heads, len(shapes), points).requires_grad_()
        given = values if isinstance(sampling, KernelSampling) else values.float()
        answer = sampling(given, torch.tensor(shapes), shapes, starts, places, weights, 64)
        torch.manual_seed(2)
        answer.backward(torch.randn(answer.shape).to(answer.dtype))
        found.append([answer.detach(), values.grad, places.grad, weights.grad])
    for plain, own in zip(*found):
        assert (plain.float() - own.float()).norm() < bound * plain.float().norm(), (kind, plain.shape)
print("alike")

from prony_node.workloads.dino_model import DeformableAttention
from prony_node.workloads.detect_config import TINY
from prony_node.workloads.dino_model import encoder_references
from prony_node.workloads.dino_model import find_levels
from prony_node.workloads.dino import use_kernel

levels = find_levels(torch.tensor([[60, 80], [44, 72]]), (64, 80), [(8, 10), (4, 5), (2, 3), (1, 2)])
layer = DeformableAttention(TINY)
torch.nn.init.normal_(layer.module.sampling_offsets.weight, std=0.3)
query = torch.randn(2, 108, TINY.hidden)
plain = layer(query, query, encoder_references(levels), levels)
use_kernel(layer)
own = layer(query, query, encoder_references(levels), levels)
torch.testing.assert_close(own, plain, atol=1e-5, rtol=1e-4)
print("alike through a layer")
"""


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_answers_and_gradients_are_those_of_transformers() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(SRC), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", COMPARE], env=environment, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["alike", "alike through a layer"], done.stderr


def test_it_takes_the_place_of_the_library_s_in_every_layer(size: Size) -> None:
    decoder: nn.Module = Decoder(size)
    use_kernel(decoder)
    layers = [module for module in decoder.modules() if isinstance(module, DeformableAttention)]
    assert len(layers) == size.decoder_layers
    assert all(isinstance(layer.module.attn, KernelSampling) for layer in layers)
