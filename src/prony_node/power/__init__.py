"""Power and energy: one reader a file, the sampler, the energy of a window. Vendors' libraries where used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prony_node.power.block import measure
    from prony_node.power.measured import Measured

__all__ = ["Measured", "measure"]


def __getattr__(name: str) -> Any:
    """`from prony_node.power import measure`, without a cost to those who want something else of this room."""
    if name == "measure":
        from prony_node.power.block import measure

        return measure
    if name == "Measured":
        from prony_node.power.measured import Measured

        return Measured
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
