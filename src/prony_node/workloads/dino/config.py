"""What `dino-swin-l` is, torch-free: every number of the model, and where it stands in the paper."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from prony_node.contract.settings import Value


@dataclass(frozen=True)
class Size:
    """Every number of the model."""

    swin_width: int  # channels at stride 4; twice as many at each stage after
    swin_depths: tuple[int, int, int, int]
    swin_heads: tuple[int, int, int, int]
    swin_window: int
    drop_path: float
    hidden: int
    heads: int
    feed_forward: int
    encoder_layers: int
    decoder_layers: int
    queries: int
    classes: int
    pairs: int  # of denoising queries in all groups together, about: one near the box and one farther off
    answers: int  # that inference gives for an image
    levels: int = 4
    points: int = 4  # of each head on each level


# Zhang et al., DINO (2022), appendix, and Swin-L as pretrained at 384x384 (windows of 12). The number of classes is
# that of the paper's code: COCO's categories go by their own numbers, 1 to 90, of which 80 are in use.
FULL = Size(
    swin_width=192, swin_depths=(2, 2, 18, 2), swin_heads=(6, 12, 24, 48), swin_window=12, drop_path=0.2,
    hidden=256, heads=8, feed_forward=2048, encoder_layers=6, decoder_layers=6, queries=900, classes=91, pairs=100,
    answers=300,
)  # fmt: skip
TINY = Size(
    swin_width=16, swin_depths=(1, 1, 2, 1), swin_heads=(1, 2, 4, 8), swin_window=4, drop_path=0.0,
    hidden=64, heads=4, feed_forward=128, encoder_layers=2, decoder_layers=2, queries=40, classes=4, pairs=20,
    answers=20,
)  # fmt: skip


def size_of(settings: Mapping[str, Value]) -> Size:
    """The model's numbers at the size that was asked for."""
    return TINY if settings.get("size") == "tiny" else FULL
