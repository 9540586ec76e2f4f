"""Inference of gpt in its two phases: prefill fills a KV cache with the prompts, decode adds a token to each.

The cache is static: made with the model for one batch size and one length, updated in place, read in full under a mask,
so that shapes never change and a step can be captured.

Every sequence holds the same fixed text, and decode is handed a position and the text's own token there. What it writes
into the cache is then what lay there already, so that the answer follows from the batch alone, however many steps came
before it, and can be held against fp32. Which token it is makes no difference to the work.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from prony_node.data.synthetic import STRUCTURE_SEED, Sampler, token_sampler
from prony_node.measure.protocol import Batch, Task
from prony_node.workloads.language.gpt import GPT

if TYPE_CHECKING:
    from prony_node.contract.settings import Value


class Cache(nn.Module):
    """Keys and values of one layer: rows, heads, positions, width of a head."""

    keys: Tensor
    values: Tensor

    def __init__(self, rows: int, heads: int, sequence: int, width: int) -> None:
        super().__init__()
        self.register_buffer("keys", torch.zeros(rows, heads, sequence, width), persistent=False)
        self.register_buffer("values", torch.zeros(rows, heads, sequence, width), persistent=False)

    def fill(self, keys: Tensor, values: Tensor) -> None:
        """A prompt's, from position 0 on."""
        rows, _, length, _ = keys.shape
        self.keys[:rows, :, :length] = keys
        self.values[:rows, :, :length] = values

    def put(self, keys: Tensor, values: Tensor, rows: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """One token's a row, each at its own position; answers these rows' keys and values at every position."""
        self.keys[rows, :, positions] = keys[:, :, 0]
        self.values[rows, :, positions] = values[:, :, 0]
        return self.keys[: len(positions)], self.values[: len(positions)]


class CachedGPT(GPT):
    def __init__(self, shape: Mapping[str, int], sequence: int, rows: int) -> None:
        layers, hidden, heads = shape["layers"], shape["hidden"], shape["heads"]
        super().__init__(layers, hidden, heads, shape["vocabulary"], sequence)
        self.rows = rows
        self.caches = nn.ModuleList(Cache(rows, heads, sequence, hidden // heads) for _ in range(layers))

    def hold(self, text: Tensor) -> None:
        """Let every row hold this text, as after its prefill."""
        with torch.no_grad():
            self.prefill(text[None].to(self.embed.weight.device))
            for cache in self.caches:
                cache.keys[1:] = cache.keys[:1]
                cache.values[1:] = cache.values[:1]

    def prefill(self, tokens: Tensor) -> Tensor:
        """Logits after the last token of each prompt."""
        x = self.embed(tokens)
        length = tokens.shape[1]
        cosine, sine = self.cosine[:length], self.sine[:length]
        for layer, cache in zip(self.layers, self.caches, strict=True):
            q, k, v = layer.project(x, cosine, sine)
            cache.fill(k, v)
            x = layer.finish(x, F.scaled_dot_product_attention(q, k, v, is_causal=True))
        return self.logits(self.norm(x[:, -1]))

    def decode(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Logits after one more token a row, which stands at that row's position."""
        x = self.embed(tokens)[:, None]
        cosine, sine = (table[positions][:, None, None] for table in (self.cosine, self.sine))
        seen = torch.arange(self.cosine.shape[0], device=positions.device) <= positions[:, None, None, None]
        rows = torch.arange(len(positions), device=positions.device)
        for layer, cache in zip(self.layers, self.caches, strict=True):
            q, k, v = layer.project(x, cosine, sine)
            keys, values = cache.put(k, v, rows, positions)
            x = layer.finish(x, attend(q, keys, values, seen))
        return self.logits(self.norm(x[:, 0]))


def attend(q: Tensor, keys: Tensor, values: Tensor, seen: Tensor) -> Tensor:
    """What one query a row finds at the positions that it may see."""
    if not torch.compiler.is_compiling():
        return F.scaled_dot_product_attention(q, keys, values, attn_mask=seen)
    # Written out: one query has nothing to gain from a fused kernel, and of this the compiler makes two, which all
    # multiprocessors share; a fused one would give each head to a single one.
    scores = (q @ keys.transpose(-1, -2)).float() * q.shape[-1] ** -0.5
    weights = scores.masked_fill(~seen, float("-inf")).softmax(-1).to(values.dtype)
    return weights @ values


def by_rows(answer: Callable[[nn.Module, Batch], Tensor], model: nn.Module, batch: Batch) -> Tensor:
    """The answer to a batch; one with more samples than the cache has rows is taken in parts."""
    if len(batch[0]) <= model.rows:
        return answer(model, batch)
    parts = zip(*(tensor.split(model.rows) for tensor in batch), strict=True)
    return torch.cat([answer(model, part) for part in parts])


def prefill_prompts(model: nn.Module, batch: Batch) -> Tensor:
    return model.prefill(batch[0])


def decode_tokens(model: nn.Module, batch: Batch) -> Tensor:
    return model.decode(*batch)


def position_sampler(text: Tensor) -> Sampler:
    """A token of the text and where it stands: sequences of all lengths are decoded side by side."""
    placed: dict[torch.device, Tensor] = {}

    def sample(generator: torch.Generator, batch_size: int) -> tuple[Tensor, ...]:
        device = generator.device
        if device not in placed:
            placed[device] = text.to(device)
        positions = torch.randint(len(text), (batch_size,), generator=generator, device=device)
        return placed[device][positions], positions

    return sample


def with_cache(task: Task, shape: Mapping[str, int], settings: Mapping[str, Value]) -> Task:
    """The task of this phase: tokens of prompts, or tokens generated, are what it counts."""
    sequence, rows = int(settings["sequence"]), int(settings["batch_size"])
    if settings["phase"] == "prefill":
        model = partial(CachedGPT, shape, sequence, rows)
        return dataclasses.replace(task, model=model, predict=partial(by_rows, prefill_prompts))
    text = token_sampler(shape["vocabulary"], sequence)(torch.Generator().manual_seed(STRUCTURE_SEED), 1)[0][0]

    def make() -> nn.Module:
        model = CachedGPT(shape, sequence, rows)
        model.hold(text)
        return model

    return dataclasses.replace(
        task,
        units_per_sample=1,
        model=make,
        predict=partial(by_rows, decode_tokens),
        sample=position_sampler(text),
    )
