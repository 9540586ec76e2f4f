"""DINO whole: backbone, encoder, query selection and decoder, and what a loss needs of them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from prony_node.measure.protocol import Capture, Part
from prony_node.workloads.dino.backbone import Backbone, level_shapes
from prony_node.workloads.dino.config import Size
from prony_node.workloads.dino.decoder import Decoder, Predicted
from prony_node.workloads.dino.denoising import Noised, filled_up, hidden_from, make_noised
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
    """What depends on the values of targets lies between the parts that find proposals and the decoder, and after."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.size = size
        self.backbone = Backbone(size)
        self.encoder = Encoder(size)
        self.selection = QuerySelection(size)
        self.decoder = Decoder(size)
        self.label_embedding = nn.Embedding(size.classes, size.hidden)
        self.captured: tuple[Part, Part] | None = None  # what finds proposals, and the decoder

    def forward(self, images: Tensor, sizes: Tensor, targets: Targets | None = None) -> Answers:
        """With targets there are denoising queries beside the others."""
        tokens, levels, selected = self.propose(images, sizes)
        content, references, hidden = selected.contents.to(tokens.dtype), selected.references, None
        noised: Noised | None = None
        first = 0
        if targets is not None and targets.most:
            noised = make_noised(targets, self.label_embedding, self.size.pairs)
            filled = filled_up(noised, 2 * self.size.pairs) if self.captured else noised  # one shape for most batches
            first = filled.queries
            content = torch.cat((filled.contents.to(tokens.dtype), content), dim=1)
            references = torch.cat((filled.references, references), dim=1)
            hidden = hidden_from(noised.queries, noised.groups, self.size.queries, images.device, first)
        predicted = self.decode(content, references, tokens, levels, hidden)
        if noised is None:
            return Answers(selected, predicted, None, 0)
        return Answers(selected, predicted.part(first), predicted.part(0, noised.queries), noised.groups)

    def encode(self, images: Tensor, sizes: Tensor) -> tuple[Tensor, Levels]:
        """The tokens of all levels, and which of them are image."""
        return encoded(self.backbone, self.encoder, images, sizes)

    def propose(self, images: Tensor, sizes: Tensor) -> tuple[Tensor, Levels, Selected]:
        """Tokens, levels, and the proposals that become queries."""
        if self.captured is None:
            tokens, levels = self.encode(images, sizes)
            return tokens, levels, self.selection(tokens, levels)
        tokens, extents, valid, *selected = self.captured[0](images, sizes)
        levels = Levels(level_shapes(images.shape[-2], images.shape[-1], self.size.levels), extents, valid)
        return tokens, levels, Selected(*selected)

    def decode(
        self, content: Tensor, references: Tensor, tokens: Tensor, levels: Levels, hidden: Tensor | None
    ) -> Predicted:
        if self.captured is None:
            predicted: Predicted = self.decoder(content, references, tokens, levels, hidden)
            return predicted
        shapes = tuple(levels.shapes)
        return Predicted(*self.captured[1](content, references, tokens, levels.extents, levels.valid, hidden, shapes))

    def capture(self, capture: Capture) -> None:
        """In training, from now on."""
        first = capture(Proposed(self.backbone, self.encoder, self.selection))
        self.captured = first, capture(Decoded(self.decoder))


class Proposed(nn.Module):
    """The parts of a Dino before its decoder, which answer tensors alone."""

    def __init__(self, backbone: Backbone, encoder: Encoder, selection: QuerySelection) -> None:
        super().__init__()
        self.backbone, self.encoder, self.selection = backbone, encoder, selection

    def forward(self, images: Tensor, sizes: Tensor) -> tuple[Tensor, ...]:
        tokens, levels = encoded(self.backbone, self.encoder, images, sizes)
        selected = self.selection(tokens, levels)
        return tokens, levels.extents, levels.valid, selected.boxes, selected.class_logits, selected.contents


class Decoded(nn.Module):
    """The decoder, given and answering tensors, and the shapes of the levels."""

    def __init__(self, decoder: Decoder) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(self, content: Tensor, references: Tensor, tokens: Tensor, extents: Tensor, valid: Tensor,
                hidden: Tensor | None, shapes: tuple[tuple[int, int], ...]) -> tuple[Tensor, Tensor]:  # fmt: skip
        predicted = self.decoder(content, references, tokens, Levels(list(shapes), extents, valid), hidden)
        return predicted.class_logits, predicted.boxes


def encoded(backbone: Backbone, encoder: Encoder, images: Tensor, sizes: Tensor) -> tuple[Tensor, Levels]:
    padded = (images.shape[-2], images.shape[-1])
    levels = find_levels(sizes, padded, level_shapes(*padded, backbone.levels))
    return encoder(backbone(images, sizes), levels), levels
