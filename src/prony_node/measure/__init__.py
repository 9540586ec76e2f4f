"""The measured loop: clocks, the step, and the checks made while running."""
