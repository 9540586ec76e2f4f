"""What a workload hands to the measured loop."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

Batch = tuple[Tensor, ...]
Part = Callable[..., tuple[Tensor, ...]]
Capture = Callable[[nn.Module], Part]  # backends/torch/step.py


@dataclass(frozen=True)
class Task:
    """A model and what is done with it; the loop owns device, precision, optimizer and timing."""

    unit: str  # images, tokens
    units_per_sample: int
    model: Callable[[], nn.Module]  # built on torch's current default device, in fp32
    loss: Callable[[nn.Module, Batch], Tensor]  # of a training batch
    predict: Callable[[nn.Module, Batch], Tensor]  # what inference answers
    sample: Callable[[torch.Generator, int], Batch]  # a synthetic batch on the generator's device, learnable
    learning_rate: float
    weight_decay: float = 0.0
    rate_share: Callable[[str], float] = lambda name: 1.0  # of the learning rate, that the parameter of this name takes
    clip: float | None = None  # the most that the norm of all gradients together may have
    attention: str = "none"  # FLOP convention: none, or full (causal attention counted as full)
    attention_order: tuple[str, ...] = ()  # kernels of torch's attention to ask on CUDA, the first choice first
    # Inference wants a model of its own shape at times (batch norms folded into convolutions).
    for_inference: Callable[[nn.Module], nn.Module] = lambda model: model
    # Put Prony's own forms of some parts in place of the library's: the same function, counted by the library's.
    own_parts: Callable[[nn.Module], object] | None = None
    recompute: Callable[[nn.Module], None] | None = None  # switch activation recomputation on
    # How well each sample of a test batch is answered, by score: its loss, and 1 or 0 for right or wrong.
    scores: Callable[[nn.Module, Batch], dict[str, Tensor]] | None = None
    # The same of what `predict` answered, where that is all it takes.
    judged: Callable[[Tensor, Batch], dict[str, Tensor]] | None = None
    vocabulary: int = 0  # of a language model: a data set's tokens must lie below
    # A text's tokens: number, first character, end.
    tokenizer: Callable[[str], list[tuple[int, int, int]]] | None = None
    # Why no two batches have one shape, where that is so: such a step is not captured, nor are its FLOPs counted.
    varies: str = ""
    # What is compared with fp32, row by row, where the answer itself jumps (a box is kept or dropped).
    compared: Callable[[nn.Module, Batch], Tensor] | None = None
    # What of the model is compiled, for any shape, where the whole step cannot be.
    compiled_parts: Callable[[nn.Module], tuple[nn.Module, ...]] | None = None
    # Have the part of the model that sees shapes alone captured in training, a graph a shape, where the step cannot be.
    capture_part: Callable[[nn.Module, Capture], None] | None = None
    held_out: int | None = None  # samples that no step sees, where the usual number is too many
    # A length for the shorter side of a data set's images, and the most for the longer one, where a loader scales them.
    scale_to: tuple[int, int] | None = None
    on_host: tuple[int, ...] = ()  # what of a batch the host must know, so that it is not sent away and asked for
    # This rank's stages of a model that was made without values, with their values (parallel/split.py says which).
    split: Callable[[nn.Module, Any], list[nn.Module]] | None = None
    synchronisations: Callable[[], int] | None = None  # how often the workload itself has waited for the device so far


class GradientExchange(Protocol):
    """How a training step is tied to those of other ranks (backends/torch/model.py chooses)."""

    sharded: bool  # no rank has the whole model
    split: bool  # a model is more than one rank, so that each is handed one without values
    precision: Callable[[], AbstractContextManager[Any]]  # of the step, for what is called by others than it
    # All micro-batches of a step, forward and backward, where they do not go one after another; their loss, if here.
    all_pieces: Callable[[Batch, int], Tensor | None] | None

    def prepare_model(self, model: nn.Module) -> nn.Module: ...
    def wrap(self, loss: nn.Module) -> Callable[..., Tensor]: ...
    def before_piece(self, last: bool) -> None: ...
    def around(self) -> AbstractContextManager[Any]: ...
    def rest(self) -> None: ...
    def counting(self) -> AbstractContextManager[Any]: ...
    def loss_of_replica(self, loss: Tensor | None) -> Tensor: ...
