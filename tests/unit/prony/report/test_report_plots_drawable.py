"""Text of a record reaches the program that draws plots, which aborts on control characters."""

from __future__ import annotations

import vl_convert

from prony.report.plots import drawable


def test_control_characters_do_not_reach_the_drawing_program() -> None:
    spec = {"mark": "point", "data": {"values": [{"x\x07": 1, "y": "bf16\x1b[31m"}]}, "title": "a\u202eb",
            "encoding": {"y": {"field": "y", "type": "nominal"}}}  # fmt: skip
    clean = drawable(spec)
    assert clean["data"]["values"] == [{"x\ufffd": 1, "y": "bf16\ufffd[31m"}]
    assert "\u202e" not in clean["title"]
    assert "bf16" in vl_convert.vegalite_to_svg(clean)
