"""The frameworks that a rank can compute with: each a package here that does what `protocol.py` says. Torch today."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prony_node.backends.protocol import Backend


def import_backend() -> None:
    """Import the framework, which takes seconds: a rank does it before anything is timed."""
    import prony_node.backends.torch.backend  # noqa: F401


def open_backend(wanted: str, number: int = 0) -> Backend:
    """The framework on the device that a setting names, `number` counting on from there. This imports it."""
    from prony_node.backends.torch.backend import TorchBackend, choose_device

    return TorchBackend(choose_device(wanted, number))
