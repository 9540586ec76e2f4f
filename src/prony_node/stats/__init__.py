"""Intervals, steady state and stopping. Standard library only; used by both programs."""

from prony_node.stats.estimate import Estimate, estimate_of
from prony_node.stats.intervals import (
    DifferenceInterval,
    MeanInterval,
    RatioInterval,
    between_run,
    difference_interval,
    mean_interval,
    normal_quantile,
    paired_ratio,
    percentile,
    share_interval,
    t_quantile,
)
from prony_node.stats.stopping import Decision, StopRule, Tracker

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
