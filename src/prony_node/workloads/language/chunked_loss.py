"""Cross entropy whose logits never exist whole: some tokens at a time, and the gradient of each part at once.

It does the same products as the loss that has all logits, and holds none of them for the backward pass. That saves
memory, not time, so it is taken where logits are too large to be worth it.

A compiler that sees the whole loop does the products of all parts first, and holds them all: more than the logits. So
it is given one part, and the loop is an operator that it does not look into.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

LARGE_BYTES = 2**32  # of logits, from which on they come in parts
TOKENS = 4096  # of a part: enough for the matrix units, a few hundred MiB of logits
Part = tuple[Tensor, Tensor, Tensor]  # the sum of its losses, and what they grow with: its states, the matrix


class ChunkedCrossEntropy(torch.autograd.Function):
    """The mean over tokens. Slopes are not divided by their number until the end: fp16 would lose them."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor, targets: Tensor, learns: bool) -> Tensor:
        add_up = opaque_parts if torch.compiler.is_compiling() else parts
        total, by_states, by_weight = add_up(states, weight, targets, learns)
        if learns:
            ctx.save_for_backward(by_states, by_weight)
            ctx.weight_kind = weight.dtype
        return total / len(targets)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        by_states, by_weight = ctx.saved_tensors
        share = gradients[0] / len(by_states)
        by_weight = (by_weight * share).to(ctx.weight_kind)
        return (by_states.to(share.dtype) * share).to(by_states.dtype), by_weight, None, None


def one_part(rows: Tensor, matrix: Tensor, right: Tensor, learns: bool) -> Part:
    logs = (rows @ matrix.t()).log_softmax(dim=1, dtype=wide(rows))  # one pass over the logits, also eager
    total = -logs.gather(1, right[:, None]).sum()
    if not learns:
        return total, rows, matrix
    is_right = torch.arange(len(matrix), device=right.device) == right[:, None]
    slopes = (logs.exp() - is_right.to(logs.dtype)).to(rows.dtype)
    return total, slopes @ matrix, slopes.t() @ rows


def parts(states: Tensor, weight: Tensor, targets: Tensor, learns: bool, part: Callable[..., Part] = one_part) -> Part:
    """All parts, one after the other; without gradients where nothing learns."""
    matrix = weight.to(states.dtype)
    total = torch.zeros((), device=states.device, dtype=wide(states))
    by_states = torch.empty_like(states) if learns else states.new_empty(0)
    by_weight = torch.zeros(weight.shape if learns else 0, device=weight.device, dtype=total.dtype)
    for start in range(0, len(states), TOKENS):
        rows = slice(start, start + TOKENS)
        sum_here, states_here, weight_here = part(states[rows], matrix, targets[rows], learns)
        total += sum_here
        if learns:
            by_states[rows] = states_here
            by_weight += weight_here
    return total, by_states, by_weight


def wide(states: Tensor) -> torch.dtype:
    """Of fp32 at least: it keeps the small parts of a sum over the vocabulary."""
    return torch.promote_types(states.dtype, torch.float32)


@functools.cache
def compiled_part() -> Callable[..., Part]:
    return torch.compile(one_part, dynamic=False)


def with_compiled_part(states: Tensor, weight: Tensor, targets: Tensor, learns: bool) -> tuple[Tensor, Tensor, Tensor]:
    with torch.no_grad(), torch.autocast(states.device.type, enabled=False):  # what it casts has been cast
        return parts(states.detach(), weight.detach(), targets, learns, compiled_part())


def shaped(states: Tensor, weight: Tensor, targets: Tensor, learns: bool) -> Part:
    """What that gives, without values."""
    total = torch.empty((), device=states.device, dtype=wide(states))
    by_states = torch.empty_like(states) if learns else states.new_empty(0)
    return total, by_states, torch.empty(weight.shape if learns else 0, device=weight.device, dtype=total.dtype)


opaque_parts = torch.library.custom_op("prony::loss_in_parts", with_compiled_part, mutates_args=())
opaque_parts.register_fake(shaped)


def is_large(states: Tensor, weight: Tensor) -> bool:
    """Whether the logits would be, two bytes each."""
    return 2 * states[..., 0].numel() * len(weight) > LARGE_BYTES


def chunked_loss(states: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Of hidden states before the last layer, which has this weight, in the precision of its product."""
    kind = states.device.type
    if kind != "meta" and torch.is_autocast_enabled(kind):
        states = states.to(torch.get_autocast_dtype(kind))
    loss: Tensor = ChunkedCrossEntropy.apply(states.flatten(0, 1), weight, targets.flatten(), torch.is_grad_enabled())
    return loss
