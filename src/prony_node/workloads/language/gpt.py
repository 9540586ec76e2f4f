"""A decoder-only transformer in plain torch: rotary positions, fused attention, tied embedding."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from prony_node.data.synthetic import token_sampler
from prony_node.measure.protocol import Batch, Task
from prony_node.workloads.language.chunked_loss import chunked_loss, is_large
from prony_node.workloads.language.config import decoder_rate, dimensions
from prony_node.workloads.language.judging import token_scores
from prony_node.workloads.weights import with_weights

if TYPE_CHECKING:
    from prony_node.contract.settings import Value
    from prony_node.workloads.config import Workload


def rotary_tables(sequence: int, width: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the rotation of each pair of channels at each position."""
    frequency = 10000.0 ** -(torch.arange(0, width, 2, dtype=torch.float32) / width)
    angle = torch.outer(torch.arange(sequence, dtype=torch.float32), frequency)
    return angle.cos(), angle.sin()


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotate the pairs (i, i + width/2) of the last dimension."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1).type_as(x)


class Layer(nn.Module):
    """Attention and feed-forward, each behind a norm and beside the residual stream."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(hidden, bias=False)
        self.qkv = nn.Linear(hidden, 3 * hidden, bias=False)
        self.out = nn.Linear(hidden, hidden, bias=False)
        self.norm2 = nn.LayerNorm(hidden, bias=False)
        self.up = nn.Linear(hidden, 4 * hidden, bias=False)
        self.down = nn.Linear(4 * hidden, hidden, bias=False)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        q, k, v = self.project(x, cosine, sine)
        return self.finish(x, F.scaled_dot_product_attention(q, k, v, is_causal=True))

    def project(self, x: Tensor, cosine: Tensor, sine: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values: batch, heads, sequence, width of a head."""
        batch, sequence, hidden = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, sequence, 3, self.heads, hidden // self.heads)
        q, k, v = (part.transpose(1, 2) for part in qkv.unbind(2))
        return rotate(q, cosine, sine), rotate(k, cosine, sine), v

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """What attention found, and the feed-forward, into the residual stream."""
        x = x + self.out(attended.transpose(1, 2).reshape(x.shape))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class GPT(nn.Module):
    cosine: Tensor
    sine: Tensor

    def __init__(self, layers: int, hidden: int, heads: int, vocabulary: int, sequence: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, hidden)
        self.layers = nn.ModuleList(Layer(hidden, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(hidden, bias=False)
        self.recompute = False
        cosine, sine = rotary_tables(sequence, hidden // heads)
        self.register_buffer("cosine", cosine, persistent=False)
        self.register_buffer("sine", sine, persistent=False)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                # Branches into the residual stream start smaller: its variance must not grow with depth.
                into_stream = name.endswith(("out.weight", "down.weight"))
                nn.init.normal_(parameter, std=0.02 / (2 * layers) ** 0.5 if into_stream else 0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """Hidden states after the last norm, ready for the output matrix."""
        x = self.embed(tokens)
        if not x.is_meta and torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))  # else the residual stream would stay fp32
        for layer in self.layers:
            if self.recompute:
                x = checkpoint(layer, x, self.cosine, self.sine, use_reentrant=False)
            else:
                x = layer(x, self.cosine, self.sine)
        return self.norm(x)

    def logits(self, hidden_states: Tensor) -> Tensor:
        return F.linear(hidden_states, self.embed.weight)


def next_token_loss(model: nn.Module, batch: Batch) -> Tensor:
    tokens, targets = batch
    states = model(tokens)
    if is_large(states, model.embed.weight):
        return chunked_loss(states, model.embed.weight, targets)
    logits = F.linear(states, model.embed.weight).flatten(0, 1)
    return F.cross_entropy(logits if logits.dtype is torch.float64 else logits.float(), targets.flatten())


def next_token_logits(model: nn.Module, tokens: Tensor) -> Tensor:
    """Logits at every position: batch, sequence, vocabulary."""
    return F.linear(model(tokens), model.embed.weight)


def predict_last(model: nn.Module, batch: Batch) -> Tensor:
    """Logits of the next token: what prefill answers."""
    states = model(batch[0])
    return F.linear(states[:, -1], model.embed.weight)


def switch_recompute_on(model: nn.Module) -> None:
    model.recompute = True


def build(workload: Workload, settings: dict[str, Value]) -> Task:
    shape = dimensions(workload, settings)
    sequence = int(settings["sequence"])
    model = partial(GPT, shape["layers"], shape["hidden"], shape["heads"], shape["vocabulary"], sequence)
    plain = settings.get("optimizer") == "sgd"  # its steps are not normalised, and its decay not decoupled
    task = Task(
        unit="tokens",
        units_per_sample=sequence,
        model=with_weights(model, settings.get("weights")),
        loss=next_token_loss,
        predict=predict_last,
        sample=token_sampler(shape["vocabulary"], sequence),
        learning_rate=decoder_rate(settings),
        weight_decay=1e-4 if plain else 0.1,
        attention="full",
        recompute=switch_recompute_on,
        scores=partial(token_scores, next_token_logits),
        vocabulary=shape["vocabulary"],
    )
    if settings.get("precision") == "fp8":
        from prony_node.workloads.language.fp8 import refuse_where_missing, use_eight_bits

        samples = settings["batch_size"]
        tokens = None if samples == "auto" else int(samples) * sequence
        refuse_where_missing(torch.device(str(settings["device"])), tokens)
        task = dataclasses.replace(task, own_parts=use_eight_bits)
    if settings.get("phase", "forward") == "forward":
        return task
    from prony_node.workloads.language.cached_gpt import with_cache

    return with_cache(task, shape, settings)
