"""Suppression of overlapping boxes in Triton, a program a group of boxes: which are kept stays on the device.

Triton takes a kernel's source from its file, so this one imports the library at its top; it is itself imported where
it is used.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl


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
