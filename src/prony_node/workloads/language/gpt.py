"""A decoder-only transformer in plain torch: rotary positions, fused attention, tied embedding."""

from __future__ import annotations

import dataclasses
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from prony_node.data.synthetic import token_sampler
from prony_node.measure.protocol import Batch, Task
from prony_node.workloads.language.chunked_loss import chunked_loss, is_large
from prony_node.workloads.language.config import decoder_rate, dimensions
from prony_node.workloads.language.judging import token_scores
from prony_node.workloads.weights import with_weights

if TYPE_CHECKING:
    from prony_node.contract.settings import Value
    from prony_node.parallel.mesh import Share
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


def recomputed_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention that keeps its inputs alone and runs once more in the backward pass."""
    attend = partial(F.scaled_dot_product_attention, is_causal=True)
    # When FLOPs are counted, the plain form stands in for a kernel, which runs whole or not at all.
    whole = set_checkpoint_early_stop(False) if q.is_meta else nullcontext()
    with whole:
        # Without dropout there is no random state to keep, and a captured step could not read it.
        attended: Tensor = checkpoint(attend, q, k, v, use_reentrant=False, preserve_rng_state=False)
    return attended


class Layer(nn.Module):
    """Attention and feed-forward, each behind a norm and beside the residual stream."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads, self.width = heads, hidden // heads  # fewer heads where several devices share them
        self.norm1 = nn.LayerNorm(hidden, bias=False)
        self.qkv = nn.Linear(hidden, 3 * hidden, bias=False)
        self.out = nn.Linear(hidden, hidden, bias=False)
        self.norm2 = nn.LayerNorm(hidden, bias=False)
        self.up = nn.Linear(hidden, 4 * hidden, bias=False)
        self.down = nn.Linear(4 * hidden, hidden, bias=False)
        self.recompute_attention = False

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        q, k, v = self.project(x, cosine, sine)
        if self.recompute_attention:
            return self.finish(x, recomputed_attention(q, k, v))
        return self.finish(x, F.scaled_dot_product_attention(q, k, v, is_causal=True))

    def project(self, x: Tensor, cosine: Tensor, sine: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values: batch, heads, sequence, width of a head."""
        qkv = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, self.width))
        q, k, v = (part.transpose(1, 2) for part in qkv.unbind(2))
        return rotate(q, cosine, sine), rotate(k, cosine, sine), v

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """What attention found, and the feed-forward, into the residual stream."""
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Output:
    """From hidden states to logits and their loss, by the embedding that the model ties to its output."""

    def logits(self, states: Tensor, weight: Tensor) -> Tensor:
        return F.linear(states, weight)

    def loss(self, states: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
        if is_large(states, weight):
            return chunked_loss(states, weight, targets)
        return F.cross_entropy(widened(self.logits(states, weight).flatten(0, 1)), targets.flatten())


def widened(logits: Tensor) -> Tensor:
    """In fp32 at least, in which a sum over the vocabulary keeps its small parts."""
    return logits if logits.dtype == torch.float64 else logits.float()


def start(name: str, parameter: Tensor, layers: int) -> None:
    """The values that a parameter has before the first step."""
    with torch.no_grad():
        if parameter.dim() == 1:
            parameter.fill_(1.0)  # the scale of a norm
            return
        # Branches into the residual stream start smaller: its variance must not grow with depth.
        into_stream = name.endswith(("out.weight", "down.weight"))
        parameter.normal_(std=0.02 / (2 * layers) ** 0.5 if into_stream else 0.02)


class GPT(nn.Module):
    cosine: Tensor
    sine: Tensor

    def __init__(self, layers: int, hidden: int, heads: int, vocabulary: int, sequence: int) -> None:
        super().__init__()
        device = torch.empty(0).device  # get_default_device of torch 2.6 ignores `with torch.device(...)`
        with torch.device("meta"):  # torch would draw values that are drawn over below
            self.embed = nn.Embedding(vocabulary, hidden)
            self.layers = nn.ModuleList(Layer(hidden, heads) for _ in range(layers))
            self.norm = nn.LayerNorm(hidden, bias=False)
        self.to_empty(device=device)
        self.recompute = False
        self.output = Output()
        cosine, sine = rotary_tables(sequence, hidden // heads)
        self.register_buffer("cosine", cosine, persistent=False)
        self.register_buffer("sine", sine, persistent=False)
        for name, parameter in self.named_parameters():
            start(name, parameter, layers)

    def forward(self, tokens: Tensor) -> Tensor:
        """Hidden states after the last norm, ready for the output matrix."""
        return self.norm(self.through(self.embedded(tokens)))

    def embedded(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        if not x.is_meta and torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))  # else the residual stream would stay fp32
        return x

    def through(self, x: Tensor) -> Tensor:
        """The residual stream after every layer that is here."""
        for layer in self.layers:
            if self.recompute:
                x = checkpoint(layer, x, self.cosine, self.sine, use_reentrant=False)
            else:
                x = layer(x, self.cosine, self.sine)
        return x

    def logits(self, hidden_states: Tensor) -> Tensor:
        return self.output.logits(hidden_states, self.embed.weight)


def next_token_loss(model: nn.Module, batch: Batch) -> Tensor:
    tokens, targets = batch
    return model.output.loss(model(tokens), model.embed.weight, targets)


def next_token_logits(model: nn.Module, tokens: Tensor) -> Tensor:
    """Logits at every position: batch, sequence, vocabulary."""
    return model.logits(model(tokens))


def predict_last(model: nn.Module, batch: Batch) -> Tensor:
    """Logits of the next token: what prefill answers."""
    return model.logits(model(batch[0])[:, -1])


def switch_recompute_on(model: nn.Module) -> None:
    model.recompute = True


def switch_recompute_of_attention_on(model: nn.Module) -> None:
    """As Megatron-LM's selective recomputation: attention is what takes most memory for its work."""
    for layer in model.layers:
        layer.recompute_attention = True


def stages_here(model: nn.Module, own: Share) -> list[nn.Module]:
    """What this rank has of a model that is split over several."""
    from prony_node.workloads.language.split_gpt import stages_of  # torch's DTensor takes a while to import

    return stages_of(model, own)


def build(workload: Workload, settings: dict[str, Value]) -> Task:
    shape = dimensions(workload, settings)
    sequence = int(settings["sequence"])
    model = partial(GPT, shape["layers"], shape["hidden"], shape["heads"], shape["vocabulary"], sequence)
    coupled = settings.get("optimizer") in ("sgd", "adam")  # weight decay is part of the gradient
    task = Task(
        unit="tokens",
        units_per_sample=sequence,
        model=with_weights(model, settings.get("weights")),
        loss=next_token_loss,
        predict=predict_last,
        sample=token_sampler(shape["vocabulary"], sequence),
        learning_rate=decoder_rate(settings),
        weight_decay=1e-4 if coupled else 0.1,
        attention="full",
        recompute=switch_recompute_of_attention_on if settings.get("recompute") == "selective" else switch_recompute_on,
        scores=partial(token_scores, next_token_logits),
        vocabulary=shape["vocabulary"],
        split=stages_here,
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
