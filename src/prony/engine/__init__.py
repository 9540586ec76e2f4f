"""The engine: a study becomes records. It starts, resumes, orders, limits and interrupts runs, and prints nothing."""
