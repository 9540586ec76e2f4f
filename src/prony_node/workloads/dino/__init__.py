"""DINO (Zhang et al., 2022): detection as the prediction of a set, in files named after the parts of the paper."""
