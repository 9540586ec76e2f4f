"""Deformable attention and positions against plain loops, and padding that nothing sees."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from prony_node.workloads.detect_config import Size
from prony_node.workloads.dino_model import (
    Decoder,
    DeformableAttention,
    Encoder,
    Levels,
    QuerySelection,
    box_embeddings,
    centres,
    encoder_references,
    find_levels,
    on_levels,
    place_embeddings,
)


def bilinear(image: Tensor, x: float, y: float) -> Tensor:
    """Channels at a place of an image (height, width, channels) in pixels, the first pixel's middle being 0.5."""
    height, width, channels = image.shape
    left, top = math.floor(x - 0.5), math.floor(y - 0.5)
    found = torch.zeros(channels)
    for row, column in ((top, left), (top, left + 1), (top + 1, left), (top + 1, left + 1)):
        if 0 <= row < height and 0 <= column < width:  # beyond the edge there is nothing
            share = (1 - abs(x - 0.5 - column)) * (1 - abs(y - 0.5 - row))
            found += share * image[row, column]
    return found


def attention_by_hand(
    layer: DeformableAttention, size: Size, query: Tensor, tokens: Tensor, references: Tensor, levels: Levels
) -> Tensor:
    module, width = layer.module, size.hidden // size.heads
    values = module.value_proj(tokens) * levels.valid[..., None]
    out = torch.zeros_like(query)
    for image in range(len(query)):
        for number, row in enumerate(query[image]):
            shifts = module.sampling_offsets(row).view(size.heads, size.levels, size.points, 2)
            weights = module.attention_weights(row).view(size.heads, -1).softmax(-1).view(size.heads, size.levels, -1)
            for head in range(size.heads):
                part = slice(head * width, (head + 1) * width)
                start = 0
                for level, (high, wide) in enumerate(levels.shapes):
                    of_level = values[image, start : start + high * wide, part].view(high, wide, width)
                    start += high * wide
                    for point in range(size.points):
                        x, y, *box = references[image, number, level].tolist()
                        dx, dy = shifts[head, level, point].tolist()
                        if box:  # shifts are in shares of half the box, a point's share of it
                            place = (
                                (x + dx / size.points * box[0] / 2) * wide,
                                (y + dy / size.points * box[1] / 2) * high,
                            )
                        else:  # shifts are in pixels
                            place = x * wide + dx, y * high + dy
                        out[image, number, part] += weights[head, level, point] * bilinear(of_level, *place)
    return module.output_proj(out)


@pytest.mark.parametrize("kind", ["points", "boxes"])
def test_deformable_attention_samples_where_the_paper_says(size: Size, levels: Levels, kind: str) -> None:
    layer = DeformableAttention(size)
    torch.nn.init.normal_(layer.module.sampling_offsets.weight, std=0.3)
    torch.nn.init.normal_(layer.module.attention_weights.weight)
    tokens = torch.randn(2, 30, size.hidden)
    query = torch.randn(2, 4, size.hidden)
    references = encoder_references(levels)[:, 5:9] if kind == "points" else on_levels(torch.rand(2, 4, 4), levels)
    with torch.no_grad():
        found = layer(query, tokens, references, levels)
        by_hand = attention_by_hand(layer, size, query, tokens, references, levels)
    torch.testing.assert_close(found, by_hand, atol=1e-5, rtol=1e-4)


def test_heads_look_in_directions_of_their_own_at_first(size: Size) -> None:
    shifts = DeformableAttention(size).module.sampling_offsets.bias.detach().view(2, 2, 3, 2)
    expected = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])[:, None, None] * torch.tensor([1.0, 2.0, 3.0])[:, None]
    torch.testing.assert_close(shifts, expected.expand(-1, 2, -1, -1), atol=1e-6, rtol=0)


def test_sampling_is_done_in_fp32_under_autocast(size: Size, levels: Levels, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    sample = F.grid_sample
    monkeypatch.setattr(
        F, "grid_sample", lambda *args, **kwargs: (seen.append(args[1].dtype), sample(*args, **kwargs))[1]
    )
    layer = DeformableAttention(size)
    tokens = torch.randn(2, 30, size.hidden)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        layer(tokens, tokens, encoder_references(levels), levels)
    layer.bfloat16()
    layer(tokens.bfloat16(), tokens.bfloat16(), encoder_references(levels), levels)
    assert seen == [torch.float32] * 4


@pytest.mark.parametrize("sizes", [[[32, 48], [20, 26]], [[17, 1], [31, 47]], [[1, 48], [9, 33]]])
def test_a_place_holds_image_where_its_first_pixel_does(sizes: list[list[int]]) -> None:
    shapes = [(4, 6), (2, 3), (1, 2)]
    levels = find_levels(torch.tensor(sizes), (32, 48), shapes)
    for image, (height, width) in enumerate(sizes):
        expected = []
        for number, (rows, columns) in enumerate(shapes):
            held = [[row * 32 // rows < height and column * 48 // columns < width for column in range(columns)]
                    for row in range(rows)]  # fmt: skip
            expected += [place for row in held for place in row]
            extent = [sum(held[0]), sum(row[0] for row in held)]
            assert levels.extents[image, number].tolist() == extent
            torch.testing.assert_close(
                levels.ratios[image, number], torch.tensor(extent) / torch.tensor([columns, rows])
            )
        assert levels.valid[image].tolist() == expected


def waves(value: float, width: int, temperature: float) -> list[float]:
    out = []
    for channel in range(width):
        angle = value * 2 * math.pi / temperature ** (2 * (channel // 2) / width)
        out.append(math.sin(angle) if channel % 2 == 0 else math.cos(angle))
    return out


def test_places_have_the_sines_of_detr_counted_over_the_image_alone(levels: Levels) -> None:
    """DETR counts the places of the mask up to each; here with the temperature of DINO."""
    embedded = place_embeddings(levels, 16)
    start = 0
    for high, wide in levels.shapes:
        for image in range(2):
            mask = levels.valid[image, start : start + high * wide].view(high, wide).tolist()
            for row in range(high):
                for column in range(wide):
                    if not mask[row][column]:
                        continue
                    up, in_column = (
                        sum(mask[r][column] for r in range(row + 1)),
                        sum(mask[r][column] for r in range(high)),
                    )
                    left, in_row = sum(mask[row][: column + 1]), sum(mask[row])
                    expected = waves(up / in_column, 8, 20) + waves(left / in_row, 8, 20)
                    found = embedded[image, start + row * wide + column]
                    torch.testing.assert_close(found, torch.tensor(expected), atol=1e-5, rtol=0)
        start += high * wide


def test_boxes_have_sines_of_each_of_their_numbers() -> None:
    boxes = torch.rand(2, 3, 4)
    embedded = box_embeddings(boxes, 16)
    for image in range(2):
        for query in range(3):
            x, y, width, height = boxes[image, query].tolist()
            expected = [number for value in (y, x, width, height) for number in waves(value, 8, 10_000)]
            torch.testing.assert_close(embedded[image, query], torch.tensor(expected), atol=1e-5, rtol=0)


def test_centres_are_shares_of_the_image(levels: Levels) -> None:
    found = centres(levels)[1]  # 20 by 26 pixels: 3 rows and 4 columns of stride 8, 2 and 2 of stride 16
    torch.testing.assert_close(found[6 + 2], torch.tensor([2.5 / 4, 1.5 / 3]))
    torch.testing.assert_close(found[24 + 3 + 1], torch.tensor([1.5 / 2, 1.5 / 2]))


def test_a_padded_image_is_answered_like_one_without_padding(size: Size) -> None:
    """Encoder, selection and decoder; the backbone is another matter, since Swin's windows reach into the padding."""
    alone = find_levels(torch.tensor([[24, 32]]), (24, 32), [(3, 4), (2, 2)])
    padded = find_levels(torch.tensor([[24, 32]]), (32, 48), [(4, 6), (2, 3)])
    maps = [torch.randn(1, size.hidden, *shape) for shape in alone.shapes]
    wide = [torch.full((1, size.hidden, *shape), 7.0) for shape in padded.shapes]
    for small, large in zip(maps, wide, strict=True):
        large[:, :, : small.shape[2], : small.shape[3]] = small
    encoder, selection, decoder = Encoder(size).eval(), QuerySelection(size).eval(), Decoder(size).eval()
    answers = []
    with torch.no_grad():
        for found, levels in ((maps, alone), (wide, padded)):
            tokens = encoder(found, levels)
            chosen = selection(tokens, levels)
            predicted = decoder(chosen.contents, chosen.references, tokens, levels)
            answers.append((tokens[levels.valid], chosen.boxes, predicted.class_logits, predicted.boxes))
    for one, other in zip(*answers, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)
