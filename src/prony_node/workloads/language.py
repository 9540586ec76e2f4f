"""Language models: their task, gpt in plain torch with linear layers of eight bits, and BERT of transformers."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from prony_node.backends.torch.task import Batch, Task
from prony_node.contract.errors import RequestError
from prony_node.contract.trial import reads_data_set
from prony_node.data.synthetic import STRUCTURE_SEED, Sampler, span_sampler, token_sampler
from prony_node.data.texts import PADDING, SEPARATOR, byte_words, word_pieces
from prony_node.workloads.language_config import decoder_rate, dimensions
from prony_node.workloads.weights import Head, with_weights

if TYPE_CHECKING:
    from prony_node.contract.settings import Value
    from prony_node.workloads.config import Workload


# A decoder-only transformer in plain torch, the task of language models, and linear layers of eight bits.


# What language models share: how answers are judged, and attention without a mask for transformers' models.
#
# Compiled or captured, transformers cannot see that a mask hides only the future, and passes a full one to torch,
# which then does not use its fused kernels. Under a name of its own the attention gets no mask: right for samples
# without padding, in which each token sees every token, or every earlier one.


LONGEST_ANSWER = 30  # tokens, as BERT's authors read an answer


def token_scores(logits_of: Callable[[nn.Module, Tensor], Tensor], model: nn.Module, batch: Batch) -> dict[str, Tensor]:
    """The mean cross entropy of a token, in nats, for each sequence."""
    tokens, targets = batch
    logits = logits_of(model, tokens).flatten(0, 1).float()
    return {"loss": F.cross_entropy(logits, targets.flatten(), reduction="none").view(len(tokens), -1).mean(1)}


def best_spans(starts: Tensor, ends: Tensor, allowed: Tensor) -> tuple[Tensor, Tensor]:
    """The likeliest answer of each row: it ends where it starts or later, soon, and inside what is allowed."""
    length = starts.shape[1]
    hidden = torch.finfo(torch.float32).min / 4
    first = starts.float().masked_fill(~allowed, hidden)
    last = ends.float().masked_fill(~allowed, hidden)
    both = first[:, :, None] + last[:, None, :]
    possible = torch.ones(length, length, dtype=torch.bool, device=starts.device).triu().tril(LONGEST_ANSWER - 1)
    place = both.masked_fill(~possible, 2 * hidden).flatten(1).argmax(1)
    return place // length, place % length


NAME = "sdpa_without_mask"


def attention_without_mask() -> str:
    """The name of that attention, known to transformers from here on."""
    from transformers import AttentionInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    AttentionInterface.register(NAME, sdpa_attention_forward)
    return NAME


def recompute_layers(model: Any) -> None:
    """Recompute activations in the backward pass, layer by layer."""
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})


# Linear layers whose three matrix products have operands of eight bits: precision=fp8.
#
# Values and weights go to e4m3, which has a bit more of mantissa, gradients to e5m2, which has a bit more of range.
# Each tensor is scaled so that its largest value is the format's, found anew in every step and kept on the device:
# nothing is carried over from step to step, and the host never waits. Weights stay fp32; what a product answers is
# bf16, and a weight's gradient fp32. It is all written in torch's own operations, so that the compiler joins scaling
# and rounding with the kernels before them.


VALUES, GRADIENTS = torch.float8_e4m3fn, torch.float8_e5m2
SMALLEST = 1e-12  # a tensor of zeros has a scale all the same
GRAIN = 16  # the matrix units take sides that are multiples of it
DEVICE_FAILED = getattr(torch, "AcceleratorError", torch.OutOfMemoryError)  # torch 2.8 and above have it


def in_eight_bits(rows: Tensor, kind: torch.dtype) -> tuple[Tensor, Tensor]:
    """The scaled and rounded tensor, and the factor that undoes the scaling."""
    # Row by row first: the kernel that made the rows can do that while it has them.
    largest = rows.abs().amax(dim=-1).amax().float()
    scale = torch.finfo(kind).max / largest.clamp(min=SMALLEST)
    return (rows.float() * scale).to(kind), scale.reciprocal()


def by_columns(matrix: Tensor) -> Tensor:
    """The same matrix with its columns in one piece each, as the second operand must lie."""
    return matrix.t().contiguous().t()


def product(a: Tensor, b: Tensor, factors: tuple[Tensor, Tensor], kind: torch.dtype, fast: bool = False) -> Tensor:
    """a b; `fast` leaves sums in the matrix unit, which keeps fewer of their bits than fp32 has."""
    return torch._scaled_mm(a, b, scale_a=factors[0], scale_b=factors[1], out_dtype=kind, use_fast_accum=fast)


class ScaledProduct(torch.autograd.Function):
    """Rows times a weight, transposed. Sums of gradients are taken in fp32: those of a weight run over all tokens."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor) -> Tensor:
        small_rows, row_factor = in_eight_bits(rows, VALUES)
        small_weight, weight_factor = in_eight_bits(weight, VALUES)
        ctx.save_for_backward(small_rows, row_factor, small_weight, weight_factor)
        ctx.kinds = rows.dtype, weight.dtype
        return product(small_rows, small_weight.t(), (row_factor, weight_factor), torch.bfloat16, fast=True)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        rows, row_factor, weight, weight_factor = ctx.saved_tensors
        row_kind, weight_kind = ctx.kinds
        gradient, factor = in_eight_bits(gradients[0], GRADIENTS)
        by_rows = product(gradient, by_columns(weight), (factor, weight_factor), torch.bfloat16)
        by_weight = product(gradient.t().contiguous(), by_columns(rows), (factor, row_factor), torch.float32)
        return by_rows.to(row_kind), by_weight.to(weight_kind)


class ScaledLinear(nn.Module):
    """In place of a linear layer without a bias, with its weight."""

    def __init__(self, other: nn.Linear) -> None:
        super().__init__()
        assert other.bias is None
        self.weight = other.weight

    def forward(self, x: Tensor) -> Tensor:
        rows: Tensor = ScaledProduct.apply(x.reshape(-1, x.shape[-1]), self.weight)
        return rows.view(*x.shape[:-1], -1)


def use_eight_bits(model: nn.Module) -> None:
    """In place, in the layers; the embedding, which is the last layer too, stays as it is."""
    for layer in model.layers:
        linear = {name: child for name, child in layer.named_children() if isinstance(child, nn.Linear)}
        for name, child in linear.items():
            setattr(layer, name, ScaledLinear(child))


def refuse_where_missing(device: torch.device, tokens: int | None) -> None:
    """Say that this torch or this device has no such product, or that a step's tokens do not fit it."""
    if tokens is not None and tokens % GRAIN:
        raise RequestError(
            f"precision=fp8 needs batch_size x sequence to be a multiple of {GRAIN}, which its matrix units take at a "
            f"time; {tokens} is none"
        )
    try:
        values = torch.ones(GRAIN, GRAIN, device=device).to(VALUES)
        one = torch.ones((), device=device)
        answer = product(values.to(GRADIENTS), values.t(), (one, one), torch.bfloat16)
        right = bool((answer == GRAIN).all())
    except (torch.OutOfMemoryError, DEVICE_FAILED):
        raise  # says nothing of what torch has
    except (AttributeError, NotImplementedError, RuntimeError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise RequestError(
            f"precision=fp8 is not possible here: torch {torch.__version__} has no scaled matrix product for "
            f"device={device} ({lines[0][:200]}); use precision=bf16"
        ) from error
    if not right:
        raise RequestError(f"precision=fp8 is not possible here: a small product on device={device} came out wrong")


# A decoder-only transformer in plain torch: rotary positions, fused attention, tied embedding, KV cache.
#
# The chunked cross entropy never holds all logits: it takes some tokens at a time and computes the gradient of each
# part at once. It does the same products, saves memory and no time, so it is used where logits are too large. A
# compiler that sees the whole loop would do the products of all parts first and hold them all, so it is given one
# part, and the loop is an operator that it does not look into.
#
# Inference has two phases: prefill fills a KV cache with the prompts, decode adds a token to each. The cache is
# static: made with the model for one batch size and one length, updated in place, read in full under a mask, so that
# shapes never change and a step can be captured. Every sequence holds the same fixed text, and decode is given a
# position and the token of the text there. It writes into the cache what was there already, so the answer follows from
# the batch alone, however many steps came before, and can be compared with fp32. Which token it is makes no difference
# to the work.


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
    )
    if settings.get("precision") == "fp8":
        samples = settings["batch_size"]
        tokens = None if samples == "auto" else int(samples) * sequence
        refuse_where_missing(torch.device(str(settings["device"])), tokens)
        task = dataclasses.replace(task, own_parts=use_eight_bits)
    if settings.get("phase", "forward") == "forward":
        return task

    return with_cache(task, shape, settings)


class KeyValueCache(nn.Module):
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
        self.caches = nn.ModuleList(KeyValueCache(rows, heads, sequence, hidden // heads) for _ in range(layers))

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


# BERT, as transformers builds it, answers a question with a span of the text: where it starts and where it ends.


# A checkpoint of the pretraining answers other questions: its heads stay behind, the span's starts from chance.
HEAD = Head(new=("qa_outputs.",), old=("cls.", "bert.pooler."))
# The largest that BERT's authors fine-tune with; from random weights too it learns, 24 layers deep and without warm-up.
LEARNING_RATE = {"sgd": 0.01, "adam": 5e-5, "adamw": 5e-5}


def span_logits(model: nn.Module, batch: Batch, padded: bool = False) -> Tensor:
    """Logits of start and end at each position: batch, sequence, 2.

    Texts of different lengths are padded, and no token may see the padding. The mask is made here, for every query,
    since transformers would ask the host whether there is any padding at all, which no captured step can.
    """
    tokens, segments = batch[:2]
    seen = (tokens != PADDING)[:, None, None, :].expand(-1, 1, tokens.shape[1], -1) if padded else None
    answer: Any = model(input_ids=tokens, token_type_ids=segments, attention_mask=seen)
    return torch.stack((answer.start_logits, answer.end_logits), dim=-1)


def span_loss(model: nn.Module, batch: Batch, padded: bool = False) -> Tensor:
    """The mean of two cross entropies over the positions, as BERT's authors fine-tune."""
    return _losses(span_logits(model, batch, padded), batch).mean()


def _losses(logits: Tensor, batch: Batch) -> Tensor:
    """Of each sample."""
    each = [F.cross_entropy(logits[..., at].float(), batch[2 + at], reduction="none") for at in (0, 1)]
    return (each[0] + each[1]) / 2


def span_scores(model: nn.Module, batch: Batch, padded: bool = False) -> dict[str, Tensor]:
    """The loss, and the answer as places in the sequence, which the data set turns into words."""
    tokens, segments = batch[:2]
    logits = span_logits(model, batch, padded)
    passage = (segments == 1) & (tokens != SEPARATOR)
    starts, ends = best_spans(logits[..., 0], logits[..., 1], passage)
    return {"loss": _losses(logits, batch), "start": starts, "end": ends}


def build_bert(workload: Workload, settings: dict[str, Value]) -> Task:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is downloaded to benchmark
    from transformers import BertConfig, BertForQuestionAnswering

    shape = dimensions(workload, settings)
    padded = reads_data_set(settings)
    attention = "sdpa" if padded else attention_without_mask()
    pieces = word_pieces(str(settings["vocab"])) if "vocab" in settings else byte_words(shape["vocabulary"])

    def make() -> nn.Module:
        config = BertConfig(
            vocab_size=shape["vocabulary"],
            hidden_size=shape["hidden"],
            num_hidden_layers=shape["layers"],
            num_attention_heads=shape["heads"],
            intermediate_size=4 * shape["hidden"],
            max_position_embeddings=shape["positions"],
            attn_implementation=attention,
        )
        model: nn.Module = BertForQuestionAnswering(config)
        return model

    return Task(
        unit="sequences",
        units_per_sample=1,
        model=with_weights(make, settings.get("weights"), HEAD),
        loss=partial(span_loss, padded=padded),
        predict=partial(span_logits, padded=padded),
        sample=span_sampler(shape["vocabulary"], int(settings["sequence"])),
        learning_rate=LEARNING_RATE[str(settings.get("optimizer", "adamw"))],
        weight_decay=0.01,
        recompute=recompute_layers,
        scores=partial(span_scores, padded=padded),
        vocabulary=shape["vocabulary"],
        tokenizer=pieces,
    )
