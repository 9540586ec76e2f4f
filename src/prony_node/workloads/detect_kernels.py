"""Triton kernels of detectors: suppression of overlapping boxes, and deformable attention's sampling."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

# Suppression of overlapping boxes in Triton, a program a group of boxes: which are kept stays on the device.
#
# Triton takes a kernel's source from its file, so this one imports the library at its top; it is itself imported where
# it is used.


@triton.jit
def _corners(boxes, rows, inside):
    left = tl.load(boxes + 4 * rows, inside, 0.0)
    top = tl.load(boxes + 4 * rows + 1, inside, 0.0)
    right = tl.load(boxes + 4 * rows + 2, inside, 0.0)
    bottom = tl.load(boxes + 4 * rows + 3, inside, 0.0)
    return left, top, right, bottom


@triton.jit
def _overlap(a, b, bound):
    """Whether boxes of a (rows) and b (columns) share more than this of their union."""
    a_left, a_top, a_right, a_bottom = a
    b_left, b_top, b_right, b_bottom = b
    wide = tl.minimum(a_right[:, None], b_right[None, :]) - tl.maximum(a_left[:, None], b_left[None, :])
    high = tl.minimum(a_bottom[:, None], b_bottom[None, :]) - tl.maximum(a_top[:, None], b_top[None, :])
    shared = tl.maximum(wide, 0.0) * tl.maximum(high, 0.0)
    area_a = (a_right - a_left) * (a_bottom - a_top)
    area_b = (b_right - b_left) * (b_bottom - b_top)
    return tl.div_rn(shared, area_a[:, None] + area_b[None, :] - shared) > bound


@triton.jit
def suppress(boxes, kept, bound, COUNT: tl.constexpr, BLOCK: tl.constexpr, LATER: tl.constexpr):
    """Of each group the best box comes first. `kept`: groups, COUNT; 1 where a box is there, then where it stays."""
    group = tl.program_id(0).to(tl.int64)
    boxes += group * COUNT * 4
    kept += group * COUNT
    for start in range(0, COUNT, BLOCK):
        rows = start + tl.arange(0, BLOCK)
        there = rows < COUNT
        ours = _corners(boxes, rows, there)
        alive = tl.load(kept + rows, there, 0).to(tl.int32)
        before = rows[:, None] < rows[None, :]
        hits = (_overlap(ours, ours, bound) & before).to(tl.int32)
        # A box stays unless a better one that stays overlaps it. Once nothing changes any more, this holds for all.
        stays, changed = alive, 1
        while changed > 0:
            now = alive * (1 - tl.max(hits * stays[:, None], axis=0))
            changed = tl.sum(tl.abs(now - stays), axis=0)
            stays = now
        tl.store(kept + rows, stays.to(tl.int8), there)
        for later in range(start + BLOCK, COUNT, LATER):
            columns = later + tl.arange(0, LATER)
            behind = columns < COUNT
            other = tl.load(kept + columns, behind, 0).to(tl.int32)
            hit = _overlap(ours, _corners(boxes, columns, behind), bound).to(tl.int32) * stays[:, None]
            tl.store(kept + columns, (other * (1 - tl.max(hit, axis=0))).to(tl.int8), behind)
        tl.debug_barrier()  # what is stored here is loaded by other threads of the program next


# Deformable attention's sampling in Triton: what lies at a place is read once, weighed and added, and never stored.
#
# A program has a block of neighbouring queries and one head. Triton takes a kernel's source from its file, so this one
# imports the library at its top; it is itself imported where it is used.


VARYING = ("queries", "tokens")  # from batch to batch; a kernel for multiples of 16 would be one more to compile


@triton.jit(do_not_specialize=VARYING)
def add_samples(values, shapes, starts, places, weights, answers, queries, tokens, HEADS: tl.constexpr,
                LEVELS: tl.constexpr, POINTS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """`answers`: image, query, head, width: the weighed sum over levels and points."""
    query = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    image = (tl.program_id(1) // HEADS).to(tl.int64)
    head = tl.program_id(1) % HEADS
    asked = query < queries
    row = (image * queries + query) * HEADS + head
    channel = tl.arange(0, WIDTH)[None, :]
    total = tl.zeros((BLOCK, WIDTH), tl.float32)
    for level in tl.static_range(LEVELS):
        high, wide = tl.load(shapes + 2 * level).to(tl.int32), tl.load(shapes + 2 * level + 1).to(tl.int32)
        first = values + ((image * tokens + tl.load(starts + level)) * HEADS + head) * WIDTH
        for point in tl.static_range(POINTS):
            at = (row * LEVELS + level) * POINTS + point
            x = tl.load(places + 2 * at, asked, 0.0) * wide - 0.5
            y = tl.load(places + 2 * at + 1, asked, 0.0) * high - 0.5
            weight = tl.load(weights + at, asked, 0.0).to(tl.float32)
            left, top = tl.floor(x), tl.floor(y)
            for corner in tl.static_range(4):
                column, line = left + corner % 2, top + corner // 2
                share = (1 - tl.abs(x - column)) * (1 - tl.abs(y - line)) * weight
                inside = asked & (column >= 0) & (column < wide) & (line >= 0) & (line < high)
                token = (line * wide + column).to(tl.int32)
                found = tl.load(first + token[:, None] * (HEADS * WIDTH) + channel, inside[:, None], 0.0)
                total += share[:, None] * found.to(tl.float32)
    tl.store(answers + row[:, None] * WIDTH + channel, total, asked[:, None])


@triton.jit(do_not_specialize=VARYING)
def add_gradients(values, shapes, starts, places, weights, gradients, of_values, of_places, of_weights, queries, tokens,
                  HEADS: tl.constexpr, LEVELS: tl.constexpr, POINTS: tl.constexpr, WIDTH: tl.constexpr,
                  BLOCK: tl.constexpr):  # fmt: skip
    """From the gradient of the answers to those of values (added to, in fp32), of places and of weights."""
    query = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    image = (tl.program_id(1) // HEADS).to(tl.int64)
    head = tl.program_id(1) % HEADS
    asked = query < queries
    row = (image * queries + query) * HEADS + head
    channel = tl.arange(0, WIDTH)[None, :]
    gradient = tl.load(gradients + row[:, None] * WIDTH + channel, asked[:, None], 0.0).to(tl.float32)
    for level in tl.static_range(LEVELS):
        high, wide = tl.load(shapes + 2 * level).to(tl.int32), tl.load(shapes + 2 * level + 1).to(tl.int32)
        first = ((image * tokens + tl.load(starts + level)) * HEADS + head) * WIDTH
        for point in tl.static_range(POINTS):
            at = (row * LEVELS + level) * POINTS + point
            x = tl.load(places + 2 * at, asked, 0.0) * wide - 0.5
            y = tl.load(places + 2 * at + 1, asked, 0.0) * high - 0.5
            weight = tl.load(weights + at, asked, 0.0).to(tl.float32)
            left, top = tl.floor(x), tl.floor(y)
            by_weight = tl.zeros((BLOCK,), tl.float32)
            by_x = tl.zeros((BLOCK,), tl.float32)
            by_y = tl.zeros((BLOCK,), tl.float32)
            for corner in tl.static_range(4):
                column, line = left + corner % 2, top + corner // 2
                share_x, share_y = 1 - tl.abs(x - column), 1 - tl.abs(y - line)
                inside = asked & (column >= 0) & (column < wide) & (line >= 0) & (line < high)
                token = (line * wide + column).to(tl.int32)
                place = first + token[:, None] * (HEADS * WIDTH) + channel
                found = tl.load(values + place, inside[:, None], 0.0).to(tl.float32)
                alike = tl.sum(found * gradient, axis=1)
                by_weight += share_x * share_y * alike
                by_x += (2 * (corner % 2) - 1) * share_y * alike
                by_y += (2 * (corner // 2) - 1) * share_x * alike
                share = share_x * share_y * weight
                tl.atomic_add(of_values + place, share[:, None] * gradient, inside[:, None], sem="relaxed")
            tl.store(of_weights + at, by_weight, asked)
            tl.store(of_places + 2 * at, by_x * weight * wide, asked)
            tl.store(of_places + 2 * at + 1, by_y * weight * high, asked)
