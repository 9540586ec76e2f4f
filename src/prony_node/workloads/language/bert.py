"""BERT, as transformers builds it, answers a question with a span of the text: where it starts and where it ends."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from prony_node.data.spans import span_sampler
from prony_node.measure.protocol import Batch, Task
from prony_node.workloads.language.attention import attention_without_mask, recompute_layers
from prony_node.workloads.language.config import dimensions

if TYPE_CHECKING:
    from prony_node.contract.settings import Value
    from prony_node.workloads.config import Workload

# The largest that BERT's authors fine-tune with; from random weights too it learns, 24 layers deep and without warm-up.
LEARNING_RATE = {"sgd": 0.01, "adam": 5e-5, "adamw": 5e-5}


def span_logits(model: nn.Module, batch: Batch) -> Tensor:
    """Logits of start and end at each position: batch, sequence, 2."""
    tokens, segments = batch[:2]
    answer: Any = model(input_ids=tokens, token_type_ids=segments)
    return torch.stack((answer.start_logits, answer.end_logits), dim=-1)


def span_loss(model: nn.Module, batch: Batch) -> Tensor:
    """The mean of two cross entropies over the positions, as BERT's authors fine-tune."""
    starts, ends = batch[2:]
    logits = span_logits(model, batch).float()
    return (F.cross_entropy(logits[..., 0], starts) + F.cross_entropy(logits[..., 1], ends)) / 2


def build(workload: Workload, settings: dict[str, Value]) -> Task:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is downloaded to benchmark
    from transformers import BertConfig, BertForQuestionAnswering

    shape, attention = dimensions(workload, settings), attention_without_mask()

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
        model=make,
        loss=span_loss,
        predict=span_logits,
        sample=span_sampler(shape["vocabulary"], int(settings["sequence"])),
        learning_rate=LEARNING_RATE[str(settings.get("optimizer", "adamw"))],
        weight_decay=0.01,
        recompute=recompute_layers,
    )
