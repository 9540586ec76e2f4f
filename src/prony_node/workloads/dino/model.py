"""DINO whole: backbone, encoder, query selection and decoder, and what a loss needs of them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from prony_node.measure.protocol import Capture, Part
from prony_node.workloads.dino.backbone import Backbone, level_shapes
from prony_node.workloads.dino.config import Size
from prony_node.workloads.dino.decoder import Decoder, Predicted
from prony_node.workloads.dino.denoising import Noised, hidden_from, make_noised
from prony_node.workloads.dino.encoder import Encoder
from prony_node.workloads.dino.positions import Levels, find_levels
from prony_node.workloads.dino.queries import QuerySelection, Selected
from prony_node.workloads.dino.targets import Targets


@dataclass(frozen=True)
class Answers:
    """Of the encoder, of the decoder's queries, and of its denoising queries where there are any."""

    selected: Selected
    matched: Predicted
    noised: Predicted | None
    groups: int


class Dino(nn.Module):
    """Backbone and encoder see shapes alone; what depends on values comes after them."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.size = size
        self.backbone = Backbone(size)
        self.encoder = Encoder(size)
        self.selection = QuerySelection(size)
        self.decoder = Decoder(size)
        self.label_embedding = nn.Embedding(size.classes, size.hidden)
        self.captured: Part | None = None

    def forward(self, images: Tensor, sizes: Tensor, targets: Targets | None = None) -> Answers:
        """With targets there are denoising queries beside the others."""
        tokens, levels = self.encode(images, sizes)
        selected = self.selection(tokens, levels)
        content, references, hidden = selected.contents.to(tokens.dtype), selected.references, None
        noised: Noised | None = None
        if targets is not None and targets.most:
            noised = make_noised(targets, self.label_embedding, self.size.pairs)
            content = torch.cat((noised.contents.to(tokens.dtype), content), dim=1)
            references = torch.cat((noised.references, references), dim=1)
            hidden = hidden_from(noised.queries, noised.groups, self.size.queries, images.device)
        predicted = self.decoder(content, references, tokens, levels, hidden)
        if noised is None:
            return Answers(selected, predicted, None, 0)
        first, rest = _split(predicted, noised.queries)
        return Answers(selected, rest, first, noised.groups)

    def encode(self, images: Tensor, sizes: Tensor) -> tuple[Tensor, Levels]:
        """The tokens of all levels, and which of them are image."""
        if self.captured is None:
            return encoded(self.backbone, self.encoder, images, sizes)
        tokens, extents, valid = self.captured(images, sizes)
        return tokens, Levels(level_shapes(images.shape[-2], images.shape[-1]), extents, valid)

    def capture(self, capture: Capture) -> None:
        """In training, from now on."""
        self.captured = capture(Encoded(self.backbone, self.encoder))


class Encoded(nn.Module):
    """The parts of a Dino that ask nothing but shapes of what they are given, and answer tensors alone."""

    def __init__(self, backbone: Backbone, encoder: Encoder) -> None:
        super().__init__()
        self.backbone, self.encoder = backbone, encoder

    def forward(self, images: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        tokens, levels = encoded(self.backbone, self.encoder, images, sizes)
        return tokens, levels.extents, levels.valid


def encoded(backbone: Backbone, encoder: Encoder, images: Tensor, sizes: Tensor) -> tuple[Tensor, Levels]:
    padded = (images.shape[-2], images.shape[-1])
    levels = find_levels(sizes, padded, level_shapes(*padded))
    return encoder(backbone(images, sizes), levels), levels


def _split(predicted: Predicted, first: int) -> tuple[Predicted, Predicted]:
    """What the denoising queries answer, which come first, and what the others do."""
    logits, boxes = predicted.class_logits, predicted.boxes
    return Predicted(logits[:, :, :first], boxes[:, :, :first]), Predicted(logits[:, :, first:], boxes[:, :, first:])
