"""What can be asked for: every setting with its values, and the target of a run that trains to a quality."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from prony_node.contract.errors import RequestError, nearest, unknown
from prony_node.contract.kernels import DEFAULT, LIBRARY, NAME, former_setting, join_kernels

MORE, LESS = "more", "less"
SCORES = {"accuracy": MORE, "exact_match": MORE, "map": MORE, "miou": MORE, "loss": LESS}  # which way each is better
SHARES = ("accuracy", "exact_match")  # of a test split's samples, so that its size says how sure they are
DEFAULT_EPOCHS = 20  # of a run that trains until a quality, when nobody says how many at most


@dataclass(frozen=True)
class QualityTarget:
    """`accuracy>=0.93`."""

    score: str
    value: float

    @property
    def better(self) -> str:
        return SCORES[self.score]

    def reached(self, value: float) -> bool:
        return value >= self.value if self.better == MORE else value <= self.value

    def __str__(self) -> str:
        return f"{self.score}{'>=' if self.better == MORE else '<='}{self.value:g}"


def parse_target(text: str, scores: tuple[str, ...]) -> QualityTarget:
    """The target that `until` states, for a workload that is judged by these scores."""
    above = ">=" in text
    score, _, number = (part.strip() for part in text.partition(">=" if above else "<="))
    if score not in scores:
        raise unknown("score", score, scores)
    wanted = ">=" if SCORES[score] == MORE else "<="
    if above != (SCORES[score] == MORE):
        raise RequestError(f"until={text} is reached before anything is learned; did you mean {score}{wanted}{number}?")
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise RequestError(f"until={text} is not possible: {number!r} is no number")
    if SCORES[score] == MORE and not 0 < value <= 1:
        hint = f"; did you mean {score}>={value / 100:g}?" if 1 < value <= 100 else ""
        raise RequestError(f"until={text} is not possible: {score} goes from 0 to 1{hint}")
    return QualityTarget(score, value)


Value = str | int | bool
SYNTHETIC_DATA = ("device", "host", "generated")  # where no data set of the user's is read
SYNONYMS = {  # what a word means that is spelled like something else
    "gpu": "cuda",
}
COUNT_LIMIT = 10**12  # no count is larger, whether it came as text or as a number


@dataclass(frozen=True)
class Setting:
    """One knob. `kind` is choice, count (a whole number of at least `least`), flag (on/off), text, or names (a list
    of words, or one of its choices alone)."""

    name: str
    kind: str
    help: str
    choices: tuple[str, ...] = ()  # of a choice, or words that a count or a flag also takes (batch_size=auto)
    least: int = 1
    pattern: str = ""  # what a text must match
    example: str = ""

    def parse(self, text: object) -> Value:
        """The typed value of `text`, or a RequestError that says what is right."""
        if self.kind == "flag":
            return self._flag(text)
        if self.kind == "count":
            return self._count(text)
        if not isinstance(text, str):
            raise self._refuse(text)
        if self.kind == "names":
            return self._names(text)
        if self.kind == "choice" and text not in self.choices:
            raise self._refuse(text)
        if self.kind == "text" and not re.fullmatch(self.pattern, text):
            raise self._refuse(text)
        return text

    def _flag(self, text: object) -> Value:
        if isinstance(text, bool) or (isinstance(text, str) and text in self.choices):
            return text
        if text in ("on", "off"):
            return text == "on"
        raise self._refuse(text)

    def _count(self, text: object) -> Value:
        if isinstance(text, str) and text in self.choices:
            return text
        if isinstance(text, int) and not isinstance(text, bool):
            number = text
        elif isinstance(text, str) and re.fullmatch(r"[+-]?[0-9]{1,12}", text):
            number = int(text)
        else:
            raise self._refuse(text)
        if not self.least <= number < COUNT_LIMIT:
            raise self._refuse(text)
        return number

    def _names(self, text: str) -> str:
        """The same for the same names, whatever their order."""
        names = [name.strip() for name in text.split(",")]
        alone = [name for name in names if name in self.choices]
        if len(names) > 1 and alone:
            raise RequestError(
                f"{self.name}={text} is not possible: {alone[0]} stands alone; several values are separated by ;"
            )
        if not all(re.fullmatch(self.pattern, name) for name in names):
            raise self._refuse(text)
        return alone[0] if alone else join_kernels(names)

    def _refuse(self, text: object) -> RequestError:
        shown = "on" if text is True else "off" if text is False else _shown(text)
        meant = SYNONYMS.get(shown.casefold(), shown)
        guess = nearest(meant, self.words()) if self.words() else None
        hint = f"; did you mean {self.name}={guess}?" if guess else ""
        return RequestError(f"{self.name}={shown} is not possible: {self.name} is {self.values()}{hint}")

    def words(self) -> tuple[str, ...]:
        return ("on", "off", *self.choices) if self.kind == "flag" else self.choices

    def values(self) -> str:
        """The possible values, for a person."""
        if self.kind in ("flag", "choice"):
            return " | ".join(self.words())
        if self.kind == "count":
            words = "".join(f" | {word}" for word in self.choices)
            return f"a whole number of at least {self.least}{words}"
        return self.example

    @property
    def separator(self) -> str:
        """What stands between several values of it: a comma, but where a value holds commas itself."""
        return ";" if self.kind == "names" or self.name == "cores" else ","

    def show(self, value: Value | None) -> str:
        """A value as a person would type it."""
        if value is True:
            return "on"
        if value is False:
            return "off"
        return "-" if value is None else str(value)


def _shown(value: object) -> str:
    try:
        text = str(value)
    except ValueError:  # Python refuses to write out a number of thousands of digits
        text = f"a {type(value).__name__} too long to show"
    return text if len(text) <= 80 else f"{text[:77]}..."


SETTINGS: dict[str, Setting] = {
    setting.name: setting
    for setting in (
        Setting("preset", "choice", "fast: what an expert picks here; plain: eager, as torch has it, a beginner's "
                "loop; published: what a study ran", ("fast", "plain", "published")),
        Setting("mode", "choice", "train (forward, backward, optimizer) or infer (forward)",
                ("train", "infer")),
        Setting("data", "text", "where batches come from: device or host memory, files generated on disk, a data set",
                pattern=r"device|host|generated|[.~/].*|[^/\\s].*/.*", choices=SYNTHETIC_DATA,
                example="device | host | generated | a folder such as ./cifar10"),
        Setting("stage", "text", "a local folder that the data set is copied to first, timed apart (data=PATH)",
                pattern=r"\S(.*\S)?", example="a folder"),
        Setting("data_samples", "count", "training samples to write (data=generated) or to use (data=PATH)"),
        Setting("test_samples", "count", "samples of the test split to evaluate on; else all of it"),
        Setting("data_format", "choice", "how data=generated lies on disk: image files, or WebDataset shards",
                ("files", "shards")),
        Setting("decode", "choice", "where images are decoded, cropped and resized", ("cpu", "device", "both")),
        Setting("cache", "choice", "keep the files in host memory, or a small data set whole on the device",
                ("off", "memory", "device")),
        Setting("augment", "flag", "random crops and mirrored images in training"),
        Setting("batch_size", "count", "samples per step and device; auto: the largest that fits", ("auto",)),
        Setting("global_batch", "count", "samples of one update of the weights, on all devices; instead of batch_size"),
        Setting("precision", "choice", "default: fp32 as torch has it, with TF32 in convolutions; bf16, fp16 and fp8 "
                "keep fp32 weights; bf16-pure has no fp32 at all",
                ("default", "fp32", "tf32", "bf16", "bf16-pure", "fp16", "fp8", "fp64")),
        Setting("compile", "choice", "torch.compile and its mode",
                ("off", "default", "reduce-overhead", "max-autotune")),
        Setting("kernels", "names", "whose implementation of each layer runs: default is what pays here, library the "
                "library's everywhere, a list of names exactly these", (DEFAULT, LIBRARY), pattern=NAME,
                example="default | library | names such as folded-stem,fused-blocks"),
        Setting("compile_cache", "choice", "cold: compile into an empty cache; warm: keep the cache of earlier runs",
                ("cold", "warm")),
        Setting("graphs", "flag", "the whole step as one device graph (CUDA, ROCm); of dino-swin-l its largest part"),
        Setting("memory_format", "choice", "layout of image tensors", ("contiguous", "channels_last")),
        Setting("optimizer", "choice", "how parameters are updated", ("sgd", "adam", "adamw")),
        Setting("fused", "flag", "the optimizer's fused form: one kernel for all parameters"),
        Setting("grad_accumulation", "count", "micro-batches per step; a step has batch_size x this many samples"),
        Setting("recompute", "flag", "recompute activations in the backward pass, to save memory; selective: those of "
                "attention alone (gpt)", ("selective",)),
        Setting("workers", "count", "loader processes (data=host, generated, PATH)", least=0),
        Setting("prefetch", "count", "batches each loader worker prepares ahead"),
        Setting("pin_memory", "flag", "page-locked batches, copied while the device computes"),
        Setting("cores", "text", "CPU cores to use: how many, what share of those allowed (25%), or which (0-3,8)",
                pattern=r"([1-9][0-9]?|100)%|[0-9]{1,5}(-[0-9]{1,5})?(,[0-9]{1,5}(-[0-9]{1,5})?)*",
                example="a number of cores, a share such as 25%, or a list such as 0-3,8"),
        Setting("bind", "choice", "ranks and loaders to the cores and memory next to their device; cores: none shared",
                ("none", "numa", "cores")),
        Setting("memory_cap", "count", "device memory to use at most, in GiB, as on a smaller device"),
        Setting("seed", "count", "of weights and data", least=0),
        Setting("device", "text", "where to run: auto, cpu, cuda, cuda:1, xpu, mps",
                pattern=r"auto|cpu|mps|(cuda|xpu)(:[0-9]{1,3})?",
                choices=("auto", "cpu", "cuda", "xpu", "mps"),
                example="auto | cpu | cuda | cuda:N | xpu | xpu:N | mps"),
        Setting("devices", "count", "all devices of the run, each with a process of its own; on a CPU, processes"),
        Setting("nodes", "count", "nodes that the devices are spread over, as many on each"),
        Setting("copies", "count", "processes that share each device (parallel=independent)"),
        Setting("parallel", "choice", "how devices share the work: gradients averaged, weights in parts, or not at all",
                ("ddp", "fsdp", "independent")),
        Setting("dp", "count", "replicas of a split model, each with its own batches; else what the devices leave"),
        Setting("tp", "count", "devices that share every layer of a model (gpt)"),
        Setting("pp", "count", "devices that a model's layers are cut over, one after another (gpt)"),
        Setting("schedule", "choice", "of a pipeline: one stage per device, or two that take turns",
                ("1f1b", "interleaved")),
        Setting("bucket_mb", "count", "MB of gradients that are exchanged at once (parallel=ddp)"),
        Setting("static_graph", "flag", "tell DDP that every step uses the same parameters"),
        Setting("reshard", "flag", "give gathered weights up after the forward pass (parallel=fsdp)"),
        Setting("sync", "flag", "off: exchange no gradients, to see what the exchange costs; it does not train"),
        Setting("batch_norm", "count", "statistics of a device's own batch, or of all or so many ranks together",
                ("local", "synced"), least=2),
        Setting("steps", "count", "a fixed length: this many steps, whatever the interval"),
        Setting("epochs", "count", "a fixed length: passes over the data set, with a test after each; a classifier "
                "that infers passes over the test split"),
        Setting("until", "text", "train until the test split shows this quality, for `epochs` at most",
                pattern=r"[A-Za-z_]+\s*(>=|<=)\s*[0-9]{1,6}(\.[0-9]{1,9})?",
                example="a score and its target, such as accuracy>=0.93 or loss<=2.5"),
        Setting("report_at_epochs", "count", "also report the score of the test split after this many epochs"),
        Setting("learning_rate", "text", "the highest that the optimizer takes; else the workload's own",
                pattern=r"([0-9]{1,4}(\.[0-9]{0,12})?|\.[0-9]{1,12})(e-?[0-9]{1,2})?",
                example="a number such as 0.1 or 3e-4"),
    )
}  # fmt: skip


def unknown_setting(name: str, known: Iterable[str], value: object = None) -> RequestError:
    """With what it is called now, where it was a setting once."""
    now = former_setting(name, value)
    return unknown("setting", name, known) if now is None else RequestError(now)


def parse_settings(given: Mapping[str, object], extra: Iterable[Setting] = ()) -> dict[str, Value]:
    """Typed settings of a request; `extra` are the ones that only this workload has."""
    own = {setting.name: setting for setting in extra}
    parsed: dict[str, Value] = {}
    for name, text in given.items():
        setting = own.get(name) or SETTINGS.get(name)
        if setting is None:
            raise unknown_setting(name, SETTINGS | own, text)
        parsed[name] = setting.parse(text)
    return parsed
