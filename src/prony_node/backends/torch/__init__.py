"""Torch: the step, clocks, memory, FLOPs, devices, graphs and compiling. Importing this package imports no torch."""
