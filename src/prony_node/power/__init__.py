"""Power and energy: one reader a file, the sampler, the energy of a window. Standard library; vendors' imported where used."""
