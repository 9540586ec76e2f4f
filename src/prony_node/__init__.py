"""The program that runs on a compute node: plan in, run folder out. Needs the standard library and torch."""

__version__ = "0.1.0"
