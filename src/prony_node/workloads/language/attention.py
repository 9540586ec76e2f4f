"""How models of transformers attend here: torch's fused attention, with no mask made for it.

Compiled or captured, transformers cannot see that a mask hides nothing but the future, and hands a full one to torch,
which then leaves the fused kernels out. Under a name of one's own it makes no mask: right for samples without padding,
in which each token sees every token, or every earlier one.
"""

from __future__ import annotations

from typing import Any

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
