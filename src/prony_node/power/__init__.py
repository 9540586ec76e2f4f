"""Power and energy: one reader a file, the sampler, the energy of a window. Vendors' libraries where used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prony_node.power.block import BlockEnergy, measure

__all__ = ["BlockEnergy", "measure"]


def __getattr__(name: str) -> Any:
    """`from prony_node.power import measure`, without a cost to those who want something else of this room."""
    if name == "measure":
        from prony_node.power.block import measure

        return measure
    if name == "BlockEnergy":
        from prony_node.power.block import BlockEnergy

        return BlockEnergy
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
