"""Mixed query selection: a query's position is one of the encoder's best proposals, its content is learned."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from prony_node.workloads.dino.config import Size
from prony_node.workloads.dino.heads import Heads, linear
from prony_node.workloads.dino.positions import Levels, centres

FINEST = 0.05  # side of a proposal on the finest level, as a share of the image; twice that on the next, and so on
MARGIN = 0.01  # a proposal whose centre or side is nearer than this to 0 or 1 is not taken


@dataclass(frozen=True)
class Selected:
    """Of each image, the proposals that become queries."""

    boxes: Tensor  # batch, queries, 4: logits, with a gradient to the encoder
    class_logits: Tensor  # batch, queries, classes
    contents: Tensor  # batch, queries, hidden: learned, the same for every image

    @property
    def references(self) -> Tensor:
        """Where the decoder starts, in logits; what it finds wrong there is not the encoder's to mend."""
        return self.boxes.detach()


class QuerySelection(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.project = linear(size.hidden, size.hidden)
        self.norm = nn.LayerNorm(size.hidden)
        self.heads = Heads(size)  # its own: the decoder has others
        self.contents = nn.Parameter(torch.empty(size.queries, size.hidden))
        nn.init.normal_(self.contents)

    def forward(self, tokens: Tensor, levels: Levels) -> Selected:
        anchors, usable = proposals(levels)
        tokens = self.norm(self.project(tokens * usable[..., None]))
        logits = self.heads.class_logits(tokens)
        best = best_tokens(logits, usable, len(self.contents))
        changes = self.heads.box_change(_take(tokens, best))  # of the chosen alone: the others' would not be used
        contents = self.contents.expand(len(tokens), -1, -1)
        return Selected(_take(anchors, best) + changes, _take(logits, best), contents)


def proposals(levels: Levels) -> tuple[Tensor, Tensor]:
    """A box around the middle of each token, as logits (batch, tokens, 4), and whether it may be taken."""
    middles = centres(levels)
    sides = [torch.full((height * width,), FINEST * 2.0**number, device=middles.device)
             for number, (height, width) in enumerate(levels.shapes)]  # fmt: skip
    side = torch.cat(sides)[None, :, None].expand(len(middles), -1, 2)
    boxes = torch.cat((middles, side), dim=-1)
    inside = ((boxes > MARGIN) & (boxes < 1 - MARGIN)).all(-1)  # which no token of the padding is: it lies beyond 1
    return torch.logit(boxes, eps=MARGIN), inside


def best_tokens(logits: Tensor, usable: Tensor, count: int) -> Tensor:
    """Batch, count: the tokens whose likeliest class is likeliest; those that may not be taken come last."""
    scores = logits.detach().amax(-1).masked_fill(~usable, -torch.inf)
    return scores.topk(count, dim=1).indices


def _take(values: Tensor, rows: Tensor) -> Tensor:
    return values.gather(1, rows[..., None].expand(-1, -1, values.shape[-1]))
