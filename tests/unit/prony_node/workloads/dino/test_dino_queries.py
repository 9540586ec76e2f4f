"""Mixed query selection, contrastive denoising and look forward twice, against what the paper says in words."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from prony_node.workloads.detect_config import FULL, Size
from prony_node.workloads.dino_model import (
    LABEL_NOISE,
    LAMBDA_1,
    LAMBDA_2,
    Decoder,
    Levels,
    Noised,
    QuerySelection,
    Targets,
    centres,
    corners,
    filled_up,
    group_count,
    hidden_from,
    make_noised,
    noised_boxes,
    noised_labels,
    proposals,
)

# Mixed query selection


def test_proposals_are_boxes_around_tokens_twice_as_large_on_each_level(levels: Levels) -> None:
    boxes, usable = proposals(levels)
    middles = centres(levels)
    for image, token in itertools.product(range(2), range(30)):
        x, y = middles[image, token].tolist()
        side = 0.05 if token < 24 else 0.1
        inside = all(0.01 < share < 0.99 for share in (x, y))
        assert bool(usable[image, token]) == (bool(levels.valid[image, token]) and inside)
        if usable[image, token]:
            expected = torch.logit(torch.tensor([x, y, side, side]))
            torch.testing.assert_close(boxes[image, token], expected, atol=1e-4, rtol=1e-4)
    assert boxes.isfinite().all()


def test_positions_are_the_best_proposals_and_contents_are_learned(size: Size, levels: Levels) -> None:
    selection = QuerySelection(size)
    torch.nn.init.normal_(selection.heads.boxes.layers[-1].weight, std=0.1)
    tokens = torch.randn(2, 30, size.hidden)
    with torch.no_grad():
        chosen = selection(tokens, levels)
    anchors, usable = proposals(levels)
    for image in range(2):
        scored = []
        for token in range(30):
            if usable[image, token]:
                seen = selection.norm(selection.project(tokens[image, token]))
                scored.append((float(selection.heads.classes(seen).detach().max()), token, seen.detach()))
        best = sorted(scored, key=lambda one: -one[0])[: size.queries]
        for query, (_, token, seen) in enumerate(best):
            expected = anchors[image, token] + selection.heads.boxes(seen).detach()
            torch.testing.assert_close(chosen.boxes[image, query], expected, atol=1e-5, rtol=1e-4)
            torch.testing.assert_close(chosen.class_logits[image, query], selection.heads.classes(seen).detach())
        assert torch.equal(chosen.contents[image], selection.contents)  # the image has no say in it


def test_the_encoder_learns_from_its_own_boxes_and_not_from_the_decoder_s(size: Size, levels: Levels) -> None:
    selection = QuerySelection(size)
    torch.nn.init.normal_(selection.heads.boxes.layers[-1].weight, std=0.1)
    tokens = torch.randn(2, 30, size.hidden, requires_grad=True)
    chosen = selection(tokens, levels)
    assert not chosen.references.requires_grad
    assert torch.equal(chosen.references, chosen.boxes)
    (gradient,) = torch.autograd.grad(chosen.boxes.sum(), tokens)
    touched = gradient.abs().sum(-1) > 0
    assert touched.sum(1).tolist() == [size.queries, size.queries]
    assert not touched[~levels.valid].any()


def test_more_queries_than_places_are_possible(size: Size, levels: Levels) -> None:
    selection = QuerySelection(Size(**{**vars(size), "queries": 30}))
    chosen = selection(torch.randn(2, 30, size.hidden), levels)
    assert chosen.boxes.isfinite().all()
    assert chosen.class_logits.isfinite().all()


# Contrastive denoising


@pytest.mark.parametrize(("most", "groups"), [(1, 100), (7, 14), (33, 3), (60, 1), (100, 1), (250, 1), (0, 100)])
def test_there_are_about_a_hundred_pairs(most: int, groups: int) -> None:
    assert group_count(most, FULL.pairs) == groups
    assert most > FULL.pairs or groups * most * 2 <= 200


def test_groups_are_kept_apart_and_hidden_from_the_others() -> None:
    noised, groups, queries = 12, 3, 5
    hidden = hidden_from(noised, groups, queries, torch.device("cpu"))
    for row, column in itertools.product(range(noised + queries), repeat=2):
        if column >= noised:
            expected = False  # the queries to be matched may be seen by all
        elif row >= noised:
            expected = True  # but must not see an answer
        else:
            expected = row // 4 != column // 4
        assert bool(hidden[row, column]) == expected


def test_what_fills_up_is_seen_by_nobody(size: Size, levels: Levels) -> None:
    """So that the others answer the same with it as without."""
    torch.manual_seed(1)
    decoder = Decoder(size)
    noised = Noised(torch.randn(2, 8, size.hidden), torch.randn(2, 8, 4), 2)
    queries, tokens = (torch.randn(2, 3, size.hidden), torch.randn(2, 3, 4)), torch.randn(2, 30, size.hidden)
    found = []
    for some in (noised, filled_up(noised, 13)):
        pairs = zip((some.contents, some.references), queries, strict=True)
        content, references = (torch.cat(pair, dim=1) for pair in pairs)
        hidden = hidden_from(8, 2, 3, torch.device("cpu"), some.queries)
        assert hidden.shape == (some.queries + 3, some.queries + 3)
        with torch.no_grad():
            predicted = decoder(content, references, tokens, levels, hidden)
        found.append((predicted.part(0, 8), predicted.part(some.queries)))
    assert some.queries == 13
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one.class_logits, other.class_logits)
        torch.testing.assert_close(one.boxes, other.boxes)


def test_a_group_s_answers_depend_on_no_other_group(size: Size, levels: Levels) -> None:
    decoder = Decoder(size)
    hidden = hidden_from(8, 2, 3, torch.device("cpu"))
    content, references, tokens = (
        torch.randn(2, 11, size.hidden),
        torch.randn(2, 11, 4),
        torch.randn(2, 30, size.hidden),
    )
    other = content.clone()
    other[:, 1] += 1.0  # one query of the first group
    with torch.no_grad():
        one, two = (decoder(given, references, tokens, levels, hidden).class_logits for given in (content, other))
    same = (one == two).flatten(3).all(-1).all(1)
    assert not same[-1, :4].any()
    assert same[:, 4:].all()


def test_positives_are_near_and_negatives_farther_off() -> None:
    boxes = torch.tensor([0.5, 0.5, 0.2, 0.1]).expand(2, 50, 2, 40, 4)  # where no edge of the image is reached
    shift = (corners(noised_boxes(boxes)) - corners(boxes)) / (torch.tensor([0.2, 0.1, 0.2, 0.1]) / 2)
    near, far = shift[:, :, 0].abs(), shift[:, :, 1].abs()
    slack = 1e-5
    assert near.max() <= LAMBDA_1 + slack
    assert far.min() >= LAMBDA_1 - slack
    assert far.max() <= LAMBDA_2 + slack
    assert near.min() < 0.01
    assert near.max() > 0.99 * LAMBDA_1
    assert far.max() > 0.99 * LAMBDA_2
    assert (LAMBDA_1, LAMBDA_2) == (0.4, 0.8)
    assert 0.45 < float((shift > 0).float().mean()) < 0.55  # to either hand
    at_the_edge = corners(noised_boxes(torch.tensor([0.05, 0.95, 0.1, 0.1]).expand(1, 50, 2, 1, 4)))
    assert at_the_edge.min() >= -1e-6
    assert at_the_edge.max() <= 1 + 1e-6


def test_some_labels_are_drawn_anew() -> None:
    labels = torch.full((20_000,), 3)
    noised = noised_labels(labels, 10)
    assert noised.unique().tolist() == list(range(10))
    changed = float((noised != labels).float().mean())
    assert changed == pytest.approx(LABEL_NOISE / 2 * 9 / 10, abs=0.02)


def test_denoising_queries_are_noised_boxes_in_groups() -> None:
    sizes = torch.tensor([[100, 100], [100, 100]])
    boxes = torch.zeros(2, 5, 4)
    boxes[0, :2] = torch.tensor([[20.0, 20, 60, 60], [50, 40, 90, 80]])
    boxes[1, 0] = torch.tensor([30.0, 30, 70, 50])
    targets = Targets(sizes, boxes, torch.tensor([[1, 2, 0, 0, 0], [3, 0, 0, 0, 0]]), torch.tensor([2, 1]))
    embed = torch.nn.Embedding(4, 8)
    noised = make_noised(targets, embed, 6)
    assert (noised.groups, noised.queries) == (3, 12)
    found = noised.references.sigmoid().view(2, 3, 2, 2, 4)
    contents = noised.contents.view(2, 3, 2, 2, 8)
    for image, box in ((0, 0), (0, 1), (1, 0)):
        half = targets.boxes[image, box, 2:].repeat(2) / 2
        moved = (corners(found[image, :, :, box]) - corners(targets.boxes[image, box])).abs() / half
        assert moved[:, 0].max() <= 0.4 + 1e-3
        assert moved[:, 1].min() >= 0.4 - 1e-3
        known = (contents[image, :, :, box, None] == embed.weight).all(-1).any(-1)
        assert known.all()  # each is the embedding of some label
    assert contents[1, :, :, 1].count_nonzero() == 0  # the second image has no second box
    assert noised.references.view(2, 3, 2, 2, 4)[1, :, :, 1].count_nonzero() == 0


# Look forward twice


class Changes:
    """Stands in for the head of boxes: each layer's change is a number of its own, whatever the queries say."""

    def __init__(self, layers: int) -> None:
        self.leaves = [torch.randn(2, 3, 4, requires_grad=True) for _ in range(layers)]
        self.given = iter(self.leaves)

    def __call__(self, _: Tensor) -> Tensor:
        return next(self.given)


def decoder_with_changes(size: Size, levels: Levels) -> tuple[list[Tensor], Tensor, Tensor, list[Tensor]]:
    decoder = Decoder(Size(**{**vars(size), "decoder_layers": 4}))
    changes, seen = Changes(4), []
    decoder.heads.box_change = changes  # type: ignore[method-assign, assignment]
    for layer in decoder.layers:
        layer.register_forward_pre_hook(lambda _, args: seen.append(args[3]))
    references = torch.randn(2, 3, 4, requires_grad=True)
    tokens = torch.randn(2, 30, size.hidden)
    predicted = decoder(torch.randn(2, 3, size.hidden), references, tokens, levels)
    return changes.leaves, references, predicted.boxes, seen


def test_boxes_are_refined_in_logit_space(size: Size, levels: Levels) -> None:
    leaves, references, boxes, seen = decoder_with_changes(size, levels)
    total = references.sigmoid()
    for layer, change in enumerate(leaves):
        torch.testing.assert_close(seen[layer], total, atol=1e-4, rtol=1e-4)  # where this layer looks
        total = (torch.log(total / (1 - total)) + change).sigmoid()
        torch.testing.assert_close(boxes[layer].sigmoid(), total, atol=1e-4, rtol=1e-4)
        assert not seen[layer].requires_grad


def test_the_loss_of_a_layer_reaches_two_changes_and_no_more(size: Size, levels: Levels) -> None:
    leaves, references, boxes, _ = decoder_with_changes(size, levels)
    for layer in range(4):
        wanted = [references, *leaves]
        gradients = torch.autograd.grad(boxes[layer].sigmoid().sum(), wanted, retain_graph=True, allow_unused=True)
        reached = [number for number, gradient in enumerate(gradients) if gradient is not None and gradient.any()]
        # Number 0 are the references, which the first layer's own box is made of; a layer's change is its number + 1.
        assert reached == [layer, layer + 1]
