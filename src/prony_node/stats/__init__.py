"""Intervals, steady state and stopping. Standard library only; used by both programs."""

from .estimate import Estimate, estimate_of
from .intervals import (
    DifferenceInterval,
    MeanInterval,
    RatioInterval,
    between_run,
    difference_interval,
    mean_interval,
    paired_ratio,
    percentile,
    share_interval,
)
from .stopping import Decision, StopRule, Tracker
from .student import normal_quantile, t_quantile

__all__ = [
    "Decision",
    "DifferenceInterval",
    "Estimate",
    "MeanInterval",
    "RatioInterval",
    "StopRule",
    "Tracker",
    "between_run",
    "difference_interval",
    "estimate_of",
    "mean_interval",
    "normal_quantile",
    "paired_ratio",
    "percentile",
    "share_interval",
    "t_quantile",
]
