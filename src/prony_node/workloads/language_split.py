"""gpt over several devices: layers shared by heads and columns (tensor parallel), or cut into stages (pipeline)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

from prony_node.parallel.split import ModelShare, keep_plain, share, vocabulary_logits, vocabulary_loss
from prony_node.workloads.language import GPT, Output, rotary_tables, start, widened


class SharedOutput(Output):
    """Where each device holds a part of the vocabulary."""

    def logits(self, states: Tensor, weight: Tensor) -> Tensor:
        return vocabulary_logits(states, weight).full_tensor()

    def loss(self, states: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
        logits = vocabulary_logits(states.flatten(0, 1), weight)
        return vocabulary_loss(widened(logits), targets.flatten())


class Stage(GPT):
    """Some of a GPT's layers: the first stage embeds the tokens, the last compares its logits with the targets.

    Both hold the embedding that the model ties to its output.
    """

    def __init__(self, model: GPT, index: int, stages: int) -> None:
        nn.Module.__init__(self)
        each = len(model.layers) // stages
        self.first, self.last, self.first_layer = index == 0, index == stages - 1, index * each
        self.layers = model.layers[self.first_layer : self.first_layer + each]
        self.embed = model.embed if self.first or self.last else None
        self.norm = model.norm if self.last else None
        self.recompute, self.output = model.recompute, model.output
        self.hidden = model.norm.weight.numel()
        self.sequence, self.width = len(model.cosine), model.layers[0].width
        self.make_tables()
        self.precision: Callable[[], AbstractContextManager[Any]] = nullcontext

    def make_tables(self) -> None:
        """The rotary tables, on the device where the stage is."""
        with self.layers[0].norm1.weight.device:
            cosine, sine = rotary_tables(self.sequence, self.width)
        self.register_buffer("cosine", cosine, persistent=False)
        self.register_buffer("sine", sine, persistent=False)

    @property
    def tied(self) -> nn.Parameter | None:
        """What the first stage and the last each hold a copy of."""
        return None if self.embed is None else next(self.embed.parameters())

    def message(self, samples: int, dtype: torch.dtype) -> Tensor:
        """What a stage hands to the next, without values."""
        return torch.empty(samples, self.sequence, self.hidden, dtype=dtype, device="meta")

    def forward(self, x: Tensor, targets: Tensor | None = None) -> Tensor:
        """The residual stream for the next stage; of the last one the loss, or hidden states without targets."""
        with self.precision():
            x = self.through(self.embedded(x) if self.first else x)
            if not self.last:
                return x
            assert self.embed is not None
            assert self.norm is not None
            x = self.norm(x)
            return x if targets is None else self.output.loss(x, self.embed.weight, targets)


def stages_of(model: nn.Module, own: ModelShare) -> list[nn.Module]:
    """This device's stages of a model that has no values yet, with those that the whole model would have.

    Values are drawn one tensor after another, and each device keeps its part: the whole never lies on one.
    """
    assert isinstance(model, GPT)
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    stages: list[nn.Module] = []
    kept: dict[str, nn.Parameter] = {}
    for index in own.stages:
        stage = Stage(model, index, own.count)
        if own.tensor is not None:
            share_layers(stage, own)
        stage.to_empty(device=own.device)
        stage.make_tables()
        stages.append(stage)
        for name, parameter in stage.named_parameters():
            kept[whole_name(name, stage.first_layer)] = parameter
    for name, shape in shapes.items():
        whole = torch.empty(shape, device=own.device)
        start(name, whole, len(model.layers))
        if name in kept:
            part = whole if own.tensor is None else part_of(name, whole, own.tensor.get_local_rank(), own.tensor.size())
            with torch.no_grad():
                local(kept[name]).copy_(part)
    return stages


def share_layers(stage: Stage, own: ModelShare) -> None:
    """Each device computes some heads of every layer, some columns of its feed-forward, and some of the vocabulary."""
    assert own.tensor is not None
    columns, rows = ColwiseParallel, RowwiseParallel
    for layer in stage.layers:
        layer.heads //= own.tensor.size()
        share(layer, {"qkv": columns(), "out": rows(), "up": columns(), "down": rows()}, own.tensor)
    if stage.embed is not None:
        share(stage, {"embed": rows(input_layouts=Replicate())}, own.tensor)
        stage.output = SharedOutput()
    if own.plain:
        keep_plain(stage)


def whole_name(name: str, first_layer: int) -> str:
    """What the whole model calls a stage's parameter."""
    words = [word for word in name.split(".") if word not in ("parametrizations", "original")]
    if words[0] == "layers":
        words[1] = str(int(words[1]) + first_layer)
    return ".".join(words)


def part_of(name: str, whole: Tensor, place: int, devices: int) -> Tensor:
    """A device's part of a parameter: its heads of queries, keys and values, its columns, its words."""
    if name.endswith("qkv.weight"):
        return whole.unflatten(0, (3, devices, -1))[:, place].flatten(0, 1)
    if name.endswith(("up.weight", "embed.weight")):
        return whole.chunk(devices, 0)[place]
    if name.endswith(("out.weight", "down.weight")):
        return whole.chunk(devices, 1)[place]
    return whole


def local(parameter: Tensor) -> Tensor:
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter
