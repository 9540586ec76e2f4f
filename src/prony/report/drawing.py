"""Whether plots can be drawn here: the libraries for it are an extra, which a login node need not have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from prony_node.contract.errors import RequestError
from prony_node.contract.plugins import install_command

Spec = dict[str, Any]  # a Vega-Lite document or a part of one
Channels = dict[str, Any]  # of a mark, by their names in Altair


@dataclass(frozen=True)
class ColourKey:
    """What a colour and a shape of a plot stand for."""

    sign: str
    colour: str
    text: str


def why_no_plots() -> str | None:
    """What is missing and how to get it; None where plots can be drawn."""
    try:
        import altair  # noqa: F401
        import vl_convert  # noqa: F401
    except ImportError as error:
        return f"plots need altair and vl-convert-python ({error}): {install_command('report')}"
    return None


def require_plots() -> None:
    why = why_no_plots()
    if why is not None:
        raise RequestError(why)
