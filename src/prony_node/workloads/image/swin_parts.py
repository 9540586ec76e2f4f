"""Prony's own forms of parts of torchvision's Swin: the same functions of the same parameters, with less to move.

Under autocast the norm after the patches answers in fp32, and so what the layers of the first stage add to is fp32. In
the others it is of the precision of the products, since one stands before each stage; here it is in the first too. And
the convolution that embeds patches is one matrix product, as in ViT.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from prony_node.workloads.image.vit_parts import PatchProduct, in_autocast_precision


def use_own_parts(network: nn.Module) -> None:
    """In place; the names of parameters stay."""
    features: Any = network.features
    features[0][0] = PatchProduct(features[0][0])
    features[1].register_forward_pre_hook(in_autocast_precision)
