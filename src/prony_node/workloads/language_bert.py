"""BERT, as transformers builds it, answers a question with a span of the text: where it starts and where it ends."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from prony_node.backends.torch.task import Batch, Task
from prony_node.contract.trial import reads_data_set
from prony_node.data.synthetic import span_sampler
from prony_node.data.texts import PADDING, SEPARATOR, byte_words, word_pieces
from prony_node.workloads.language import attention_without_mask, best_spans, recompute_layers
from prony_node.workloads.language_config import dimensions
from prony_node.workloads.weights import Head, with_weights

if TYPE_CHECKING:
    from prony_node.contract.settings import Value
    from prony_node.workloads.config import Workload

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


def build(workload: Workload, settings: dict[str, Value]) -> Task:
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
