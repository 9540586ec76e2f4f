"""What each check of a record asks, and what its levels mean."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class CheckMeaning:
    """A check's question, and when it has each level; an empty text: it never has that level."""

    name: str
    asks: str
    passes: str = ""
    warn: str = ""
    fail: str = ""
    unknown: str = ""
    group: str = "rate"
    only: str = ""  # the runs in which it is made; empty: all

    def levels(self) -> Iterator[tuple[str, str]]:
        """Each level that it can have, from best to worst, with its meaning."""
        for level in ("pass", "unknown", "warn", "fail"):
            text = self.passes if level == "pass" else getattr(self, level)
            if text:
                yield level, text


NOT_READABLE = "not readable here"
GROUPS = {
    "rate": "The rate and its interval",
    "correct": "The work itself",
    "devices": "Several devices",
    "conditions": "The machine during the run",
    "energy": "Energy",
    "record": "The record",
}
CHECKS: dict[str, CheckMeaning] = {
    check.name: check
    for check in (
        CheckMeaning("steady", "Did the step time drift over the window?", "a drift of 2 % is excluded",
                     "it may have drifted by 2 %, or the window is under twice the transient",
                     unknown="the noise could hide it"),
        CheckMeaning("levels", "Did the step time jump between levels, as with two clocks?",
                     "one level, or levels within 2 %", "levels more than 2 % apart", unknown="too few steps"),
        CheckMeaning("blocks", "Are there enough effectively independent blocks?",
                     "18 or more; 6 or more where the interval is 3 times narrower than requested", "fewer",
                     unknown="6 or more in a run of fixed length"),
        CheckMeaning("tolerance", "Is the interval as narrow as requested?", "yes", "the time limit came first",
                     unknown="a run of fixed length"),
        CheckMeaning("arithmetic", "Does rate x time equal the counted work?", "within 0.1 %",
                     fail="one of the three is wrong", unknown="there is no rate"),
        CheckMeaning("clock", "Do device time and host time of the window agree?", "within 1 % or 20 ms",
                     "they differ by more"),
        CheckMeaning("loader", "Did the steps wait for data?", "less than 2 % of step time", "input-bound"),
        CheckMeaning("utilisation", "Is the MFU possible?", "at most 100 %", fail="a count or a peak is wrong",
                     unknown="no peak is known"),
        CheckMeaning("loss", "Did the loss on held-out samples fall?", "yes", "no", "not finite",
                     "fewer than 100 steps", "correct", "training"),
        CheckMeaning("losses", "Was the loss of every step finite, on each rank?", "yes", "", "at least one was not",
                     group="correct", only="training"),
        CheckMeaning("parameters", "Did every parameter tensor change?", "yes",
                     "some did not in bf16-pure, which rounds small updates away", "some did not",
                     group="correct", only="training"),
        CheckMeaning("updates", "Was there one optimizer step per step?",
                     "yes, or the gradient scaler skipped up to 1 %", "the scaler skipped more", "another count",
                     group="correct", only="training"),
        CheckMeaning("still-training", "Do the parameters still change at the end, and in each part, of the window?",
                     "all that changed in the run", "a few tensors do not", "most do not",
                     group="correct", only="training"),
        CheckMeaning("finite", "Are the parameters and the last loss, or the outputs, finite?", "yes",
                     fail="no", group="correct"),
        CheckMeaning("outputs", "Do the outputs of the measured step agree with the model in fp32?",
                     "within the bound of the precision", fail="beyond the bound", group="correct", only="inference"),
        CheckMeaning("quality", "Did the test split reach the quality of `until`?", "yes",
                     fail="not within the epochs of the run", group="correct", only="with `until`"),
        CheckMeaning("replicas", "Do all ranks end with the same weights?", "yes", fail="no",
                     group="devices", only="`parallel=ddp`"),
        CheckMeaning("sync", "Were gradients exchanged?", "", "no: the run does not train as requested",
                     group="devices", only="`sync=off`"),
        CheckMeaning("ranks", "Is one rank, running alone, slower than the others?", "none by 5 % beyond chance",
                     "a straggler, by name", unknown="ranks cannot run alone, or too few steps",
                     group="devices", only="several ranks"),
        CheckMeaning("collective", "Did every rank have the right answer at each size, before it was timed?", "yes",
                     fail="a size with a wrong answer has no time", group="devices", only="collectives"),
        CheckMeaning("throttled", "Was the device throttled by heat or power?",
                     "no, or by its default power limit alone", "in some samples",
                     "by heat in 10 % of the samples or more", NOT_READABLE, "conditions"),
        CheckMeaning("clocks", "Is the clock as high as it can be, and at one level?", "yes, or power explains it",
                     "below 85 % and fixed, jumps of more than 20 %, or drops of more than 5 %",
                     unknown=NOT_READABLE, group="conditions"),
        CheckMeaning("memory-clock", "Does the memory run at its highest clock?", "above 85 % of it", "below",
                     unknown=NOT_READABLE, group="conditions"),
        CheckMeaning("pcie-link", "Is the PCIe link under load as wide and fast as it can be?", "yes", "no",
                     unknown=NOT_READABLE, group="conditions"),
        CheckMeaning("device-errors", "Are there new XIDs, remapped rows, retired pages or uncorrected memory errors?",
                     "none", "some", unknown=NOT_READABLE, group="conditions"),
        CheckMeaning("host-cpus", "Is there enough CPU time for the run?",
                     "10 % of its CPUs are idle, or it uses them itself", "other processes use them",
                     unknown=NOT_READABLE, group="conditions", only="accelerators"),
        CheckMeaning("cpu-limit", "Did a cgroup limit throttle the run's threads?", "for 0.1 % of the window at most",
                     "for longer", unknown=NOT_READABLE, group="conditions"),
        CheckMeaning("foreign-processes", "Did other processes use the device, or the CPUs?", "no", "yes",
                     unknown="a container or virtual machine hides them", group="conditions"),
        CheckMeaning("swap", "Did the machine swap?", "no", "yes", unknown=NOT_READABLE, group="conditions"),
        CheckMeaning("host-memory", "Does the host memory of the run's processes grow steadily?", "no",
                     "a leak, or a cache that fills", unknown="a short window", group="conditions"),
        CheckMeaning("energy", "Why does a device with a power sensor have no energy figure?",
                     unknown="the reason", group="energy", only="without a figure"),
        CheckMeaning("energy-window", "Is the window long enough for its ticks or readings?",
                     "uncertainty of 1.5 % or less", "more", group="energy"),
        CheckMeaning("energy-agreement", "Do counter and integral agree over the same two instants?",
                     "within 2 %, or within their uncertainties", "up to 5 %", "more than 5 %", "only one of them",
                     "energy"),
        CheckMeaning("energy-gap", "How long was the longest time without a reading?", "short",
                     "long, and power is integrated over it", group="energy"),
        CheckMeaning("energy-drift", "Did the power change over the window?", "a change of 5 % is excluded",
                     "shown to be more than 2 %", unknown="the noise could hide 5 %", group="energy"),
        CheckMeaning("energy-limit", "Is the mean power below the device's limit?", "within 5 % of it, or below",
                     fail="a sensor or a unit is wrong", group="energy"),
        CheckMeaning("energy-sensor", "Did a sensor stop or come back within the window?", "", "yes",
                     group="energy", only="if one did"),
        CheckMeaning("energy-devices", "Was every device that took part measured?", "yes", "no",
                     unknown="which took part is not known", group="energy"),
        CheckMeaning("energy-node", "Does the node use at least what its devices use?", "yes",
                     fail="a sensor or a unit is wrong", group="energy", only="with a node sensor"),
        CheckMeaning("energy-span", "How much of the command do the ticks or readings cover?", "nearly all", "less",
                     group="energy", only="`prony power`"),
        CheckMeaning("energy-throttling", "Was the device throttled?", "no, or by its power limit alone", "yes",
                     unknown=NOT_READABLE, group="energy", only="`prony power`"),
        CheckMeaning("energy-foreign", "Did other processes use the device when sampling began?", "none seen", "yes",
                     unknown=NOT_READABLE, group="energy", only="`prony power`"),
        CheckMeaning("plausible", "Can the record be true?",
                     fail="a negative rate, an interval that ends before it begins, and the like",
                     group="record", only="if it cannot"),
        CheckMeaning("unchanged", "Does the record agree with its files?",
                     fail="record or files were changed afterwards",
                     unknown="no manifest to check against", group="record", only="if it does not"),
        CheckMeaning("supervisor", "Did something go wrong after the measurement?", "", "yes",
                     group="record", only="if it did"),
    )
}  # fmt: skip
