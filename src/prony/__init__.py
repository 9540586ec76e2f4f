"""The controller: plans, launches, stores, analyses and reports runs. It never imports torch."""

from prony_node import __version__

__all__ = ["__version__"]
