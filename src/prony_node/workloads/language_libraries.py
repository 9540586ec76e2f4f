"""Any causal language model of transformers, built from its configuration with random weights: `hf/NAME`.

NAME is a model type with its default configuration (hf/llama), or a file or folder of the user's with a config.json
(hf/./my-model).
"""

from __future__ import annotations

import copy
import inspect
import json
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from prony_node.backends.torch.task import Batch, Task
from prony_node.contract.errors import RequestError, unknown
from prony_node.data.synthetic import token_sampler
from prony_node.workloads.language import attention_without_mask, recompute_layers, token_scores
from prony_node.workloads.language_config import decoder_rate
from prony_node.workloads.weights import with_weights

if TYPE_CHECKING:
    from prony_node.contract.settings import Value
    from prony_node.workloads.config import Workload

TINY = {
    "vocab_size": 256, "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 2, "head_dim": 64, "intermediate_size": 256, "max_position_embeddings": 256,
}  # fmt: skip
TINY_WORDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}  # where the type's own lie beyond 256 tokens
# Types whose only mask is the causal one, as a test of each against transformers' own attention shows.
CAUSAL_MASK_ALONE = (
    "gpt2", "gpt_bigcode", "gpt_neox", "opt", "llama", "mistral", "qwen2", "qwen3", "phi", "phi3", "gemma", "olmo",
    "olmo2", "granite", "cohere", "stablelm", "starcoder2", "smollm3",
)  # fmt: skip


def check(workload: Workload) -> None:
    """Refuse a name that transformers does not know, with the nearest."""
    configuration(workload)


def configuration(workload: Workload, tiny: bool = False) -> Any:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is downloaded to benchmark
    from transformers import AutoConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    name = workload.name.removeprefix("hf/")
    given = {} if name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES else read_config(name)
    kind = str(given.pop("model_type", name))
    if kind not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise unknown("causal language model of transformers", kind, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    try:
        config = AutoConfig.for_model(kind, **given)
        if tiny:
            config = AutoConfig.for_model(kind, **given | tiny_values(config))
    except Exception as error:  # each type has checks of its own, with errors of its own
        size = " of size=tiny" if tiny else ""
        raise RequestError(f"transformers refuses the configuration{size} for hf/{name}: {error}") from error
    if getattr(config, "is_decoder", True) is False and not getattr(config, "is_encoder_decoder", False):
        config.is_decoder = True  # an encoder's type (bert) would else see the tokens that it is to tell
    return config


def read_config(name: str) -> dict[str, Any]:
    """The user's config.json; nothing when the name is no path, so a model type that may be misspelt."""
    path = Path(name).expanduser()
    if not ("/" in name or name.startswith((".", "~")) or name.endswith(".json") or path.exists()):
        return {}
    path = path / "config.json" if path.is_dir() else path
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RequestError(f"hf/{name}: {path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise RequestError(f"hf/{name}: {path} is not JSON") from error
    if not isinstance(document, dict) or "model_type" not in document:
        raise RequestError(f"hf/{name}: {path} has no model_type, so it is not the config.json of a model")
    return document


def tiny_values(config: Any) -> dict[str, Any]:
    """Small dimensions, by the names that this type's configuration has."""
    values: dict[str, Any] = {
        name: value for name, value in TINY.items() if isinstance(getattr(config, name, None), int)
    }
    for name, value in TINY_WORDS.items():
        own = getattr(config, name, None)
        if isinstance(own, int) and own >= TINY["vocab_size"]:
            values[name] = value
    return values


def attention_of(config: Any, sequence: int) -> str | None:
    """Without a mask where the causal one is all there is; None: as transformers chooses."""
    window = getattr(config, "sliding_window", None)
    if config.model_type not in CAUSAL_MASK_ALONE or (window is not None and window <= sequence):
        return None
    return attention_without_mask()


def next_token_loss(model: nn.Module, batch: Batch) -> Tensor:
    tokens, targets = batch
    return F.cross_entropy(next_token_logits(model, tokens).flatten(0, 1).float(), targets.flatten())


def next_token_logits(model: nn.Module, tokens: Tensor) -> Tensor:
    """Logits at every position: batch, sequence, vocabulary."""
    logits: Tensor = model(input_ids=tokens, use_cache=False).logits
    return logits


def predict_last(model: nn.Module, batch: Batch) -> Tensor:
    """Logits of the next token; most types can be told to compute no others."""
    only_last = {"logits_to_keep": 1} if "logits_to_keep" in inspect.signature(model.forward).parameters else {}
    return model(input_ids=batch[0], use_cache=False, **only_last).logits[:, -1]


def build(workload: Workload, settings: dict[str, Value]) -> Task:
    config = configuration(workload, tiny=settings.get("size") == "tiny")
    from transformers import AutoModelForCausalLM

    sequence = int(settings["sequence"])
    most = getattr(config, "max_position_embeddings", None)
    if isinstance(most, int) and sequence > most > 0:
        raise RequestError(f"sequence={sequence} is not possible: {workload.name} has {most} positions")
    attention = attention_of(config, sequence)

    def make() -> nn.Module:
        own = copy.deepcopy(config)  # the library writes into it
        chosen = {} if attention is None else {"attn_implementation": attention}
        model: nn.Module = AutoModelForCausalLM.from_config(own, dtype=torch.float32, **chosen)
        return model

    vocabulary = int(config.get_text_config().vocab_size)
    coupled = settings.get("optimizer") in ("sgd", "adam")  # weight decay is part of the gradient
    return Task(
        unit="tokens",
        units_per_sample=sequence,
        model=with_weights(make, settings.get("weights")),
        loss=next_token_loss,
        predict=predict_last,
        sample=token_sampler(vocabulary, sequence),
        learning_rate=decoder_rate(settings),
        weight_decay=1e-4 if coupled else 0.1,
        attention="full",
        recompute=recompute_layers,
        scores=partial(token_scores, next_token_logits),
        vocabulary=vocabulary,
    )
