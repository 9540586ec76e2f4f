"""SegFormer as transformers builds it from its configuration, and a tiny one of the same kind."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from prony_node.backends.torch.task import Task
from prony_node.workloads.segment.task import enlarged, segment_task
from prony_node.workloads.weights import Head

if TYPE_CHECKING:
    from prony_node.contract.settings import Value
    from prony_node.workloads.config import Workload

B4: dict[str, Any] = {"depths": [3, 8, 27, 3], "hidden_sizes": [64, 128, 320, 512], "decoder_hidden_size": 768}
TINY: dict[str, Any] = {
    "depths": [1, 1, 2, 1], "hidden_sizes": [16, 32, 40, 64], "decoder_hidden_size": 48,
    "drop_path_rate": 0.0, "classifier_dropout_prob": 0.0,
}  # fmt: skip
# Its authors fine-tune with 6e-5; random weights, and no warm-up in a run of a minute, take a little more.
FINE_TUNED = 6e-5
LEARNING_RATE = {"sgd": 0.01, "adam": 1e-4, "adamw": 1e-4}
TINY_RATE = {"sgd": 0.05, "adam": 3e-3, "adamw": 3e-3}
DECAY = 0.01
# The published checkpoints have the names of earlier versions of transformers.
RENAMED = (
    (r"encoder\.(patch_embeddings|block|layer_norm)\.(\d+)", r"stages.\2.\1"),
    (r"\.block\.", ".blocks."),
    (r"attention\.self\.query", "attention.q_proj"),
    (r"attention\.self\.key", "attention.k_proj"),
    (r"attention\.self\.value", "attention.v_proj"),
    (r"attention\.self\.sr", "attention.sequence_reduction.sequence_reduction"),
    (r"attention\.self\.layer_norm", "attention.sequence_reduction.layer_norm"),
    (r"attention\.output\.dense", "attention.o_proj"),
    (r"mlp\.dense(\d)", r"mlp.fc\1"),
    (r"layer_norm_1", "layernorm_before"),
    (r"layer_norm_2", "layernorm_after"),
    (r"decode_head\.linear_c", "decode_head.linear_projections"),
)
# A checkpoint of the encoder alone, as ImageNet trains it, has no decoder and a classifier that stays behind.
HEAD = Head(new=("decode_head.",), old=("classifier.",), renamed=RENAMED)


def quarter_logits(network: nn.Module, images: Tensor) -> Tensor:
    """At a quarter of the resolution.

    Stage by stage: the model's own forward collects what each stage answers through hooks and a context variable,
    which no compiler can follow.
    """
    model: Any = network
    found = [images]
    for stage in model.segformer.stages:
        found.append(stage(found[-1]))
    logits: Tensor = model.decode_head(found[1:])
    return logits


def decode_by_products(network: nn.Module) -> None:
    """The decoder of transformers with each level enlarged by Prony's own form."""
    model: Any = network
    model.decode_head.forward = partial(decode, model.decode_head)


def decode(head: Any, found: list[Tensor]) -> Tensor:
    size = (found[0].shape[-2], found[0].shape[-1])
    levels = []
    for project, level in zip(head.linear_projections, found, strict=True):
        tokens = project(level)
        width = tokens.shape[-1]
        levels.append(enlarged(tokens.transpose(1, 2).reshape(-1, width, *level.shape[-2:]), size, products=True))
    mixed = head.activation(head.batch_norm(head.linear_fuse(torch.cat(levels[::-1], dim=1))))
    logits: Tensor = head.classifier(head.dropout(mixed))
    return logits


def build(workload: Workload, settings: dict[str, Value]) -> Task:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is downloaded to benchmark
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    tiny, classes = settings.get("size") == "tiny", workload.shape["classes"]
    optimizer = str(settings.get("optimizer", workload.optimizer))

    config = SegformerConfig(**(TINY if tiny else B4), num_labels=classes)

    def make() -> nn.Module:
        model: nn.Module = SegformerForSemanticSegmentation(config)
        return model

    rate = (TINY_RATE if tiny else LEARNING_RATE)[optimizer]
    if "weights" in settings and optimizer != "sgd":
        rate = FINE_TUNED
    return segment_task(
        make, quarter_logits, classes, settings, learning_rate=rate, weight_decay=DECAY, head=HEAD,
        by_products=decode_by_products,
    )  # fmt: skip
