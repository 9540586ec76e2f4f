"""Asking the node program for a person, who is told when its answer takes long."""

from __future__ import annotations

import sys
from typing import Any

from prony.launch import node


def ask_node(question: str, *words: str) -> dict[str, Any]:
    """The answer of the node program to a question: `prony.launch.node.ask_node`."""
    return node.ask_node(question, *words, warn=lambda text: print(f"prony: {text}", file=sys.stderr))
