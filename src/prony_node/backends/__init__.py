"""The frameworks that a rank can compute with: each a package here that does what `protocol.py` says. Torch today."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prony_node.backends.protocol import Framework

# Each has a file that is imported without the framework, and in it the object that answers for it.
FRAMEWORKS = {"torch": "prony_node.backends.torch.framework"}


def framework(name: str = "torch") -> Framework:
    """The one door to a framework. Nothing of it is imported before it is asked for something that needs it."""
    found: Framework = import_module(FRAMEWORKS[name]).FRAMEWORK
    return found
