"""What can be asked for: every setting with its values, kernels, the target of a run, and the division over devices."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from prony_node.contract.errors import RequestError, nearest, unknown

Value = str | int | bool

DEFAULT, LIBRARY = "default", "library"  # values of `kernels`, instead of names
KERNEL_NAME = r"[a-z0-9]+(-[a-z0-9]+)*"
SYNTHETIC_DATA = ("device", "host", "generated")  # where no data set of the user's is read
SYNONYMS = {  # what a word means that is spelled like something else
    "gpu": "cuda",
}
COUNT_LIMIT = 10**12  # no count is larger, whether it came as text or as a number


@dataclass(frozen=True)
class Setting:
    """One setting that can be asked for.

    `kind` is choice, count (a whole number of at least `least`), flag (on/off), text, or names (a list of words, or one
    of its choices alone).
    """

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
        Setting("preset", "choice", "fast: what an expert picks on this device; plain: an eager loop with torch's "
                "defaults; published: the settings of a study", ("fast", "plain", "published")),
        Setting("mode", "choice", "train (forward, backward, optimizer) or infer (forward)",
                ("train", "infer")),
        Setting("data", "text", "source of batches: device memory, host memory, files generated on disk, a data set",
                pattern=r"device|host|generated|[.~/].*|[^/\\s].*/.*", choices=SYNTHETIC_DATA,
                example="device | host | generated | a folder such as ./cifar10"),
        Setting("stage", "text", "local folder to copy the data set to first; timed separately (data=PATH)",
                pattern=r"\S(.*\S)?", example="a folder"),
        Setting("data_samples", "count", "training samples to write (data=generated) or to use (data=PATH)"),
        Setting("test_samples", "count", "samples of the test split to evaluate on (default: all)"),
        Setting("data_format", "choice", "format of data=generated on disk: image files or WebDataset shards",
                ("files", "shards")),
        Setting("decode", "choice", "where images are decoded, cropped and resized", ("cpu", "device", "both")),
        Setting("cache", "choice", "keep the files in host memory, or a small data set in device memory",
                ("off", "memory", "device")),
        Setting("augment", "flag", "random crops and mirroring of images in training"),
        Setting("batch_size", "count", "samples per step and device; auto: the largest that fits", ("auto",)),
        Setting("global_batch", "count", "samples per optimizer step over all devices; instead of batch_size"),
        Setting("precision", "choice", "default: torch's fp32, with TF32 in convolutions; bf16, fp16 and fp8 keep fp32 "
                "weights; bf16-pure keeps none",
                ("default", "fp32", "tf32", "bf16", "bf16-pure", "fp16", "fp8", "fp64")),
        Setting("compile", "choice", "torch.compile and its mode",
                ("off", "default", "reduce-overhead", "max-autotune")),
        Setting("kernels", "names", "implementations of layers. default: the fastest shown for this workload and "
                "device; library: the library's; a list of names: exactly these", (DEFAULT, LIBRARY),
                pattern=KERNEL_NAME, example="default | library | names such as folded-stem,fused-blocks"),
        Setting("compile_cache", "choice", "cold: compile into an empty cache; warm: keep the cache of earlier runs",
                ("cold", "warm")),
        Setting("graphs", "flag", "capture the whole step as one device graph (CUDA, ROCm); dino-swin-l: most of it"),
        Setting("memory_format", "choice", "layout of image tensors", ("contiguous", "channels_last")),
        Setting("optimizer", "choice", "optimizer of the training step", ("sgd", "adam", "adamw")),
        Setting("fused", "flag", "use the fused optimizer: one kernel for all parameters"),
        Setting("grad_accumulation", "count", "micro-batches per step; a step has batch_size x this many samples"),
        Setting("recompute", "flag", "recompute activations in the backward pass to save memory; selective: only those "
                "of attention (gpt)", ("selective",)),
        Setting("workers", "count", "loader processes (data=host, generated, PATH)", least=0),
        Setting("prefetch", "count", "batches each loader worker prepares ahead"),
        Setting("pin_memory", "flag", "pin host memory, so that copies overlap with computation"),
        Setting("cores", "text", "CPU cores to use: a number, a share of those allowed (25%), or a list (0-3,8)",
                pattern=r"([1-9][0-9]?|100)%|[0-9]{1,5}(-[0-9]{1,5})?(,[0-9]{1,5}(-[0-9]{1,5})?)*",
                example="a number of cores, a share such as 25%, or a list such as 0-3,8"),
        Setting("bind", "choice", "bind ranks and loaders to cores and memory next to their device; cores: share none",
                ("none", "numa", "cores")),
        Setting("memory_cap", "count", "most device memory to use, in GiB, to emulate a smaller device"),
        Setting("seed", "count", "random seed of weights and data", least=0),
        Setting("device", "text", "where to run: auto, cpu, cuda, cuda:1, xpu, mps",
                pattern=r"auto|cpu|mps|(cuda|xpu)(:[0-9]{1,3})?",
                choices=("auto", "cpu", "cuda", "xpu", "mps"),
                example="auto | cpu | cuda | cuda:N | xpu | xpu:N | mps"),
        Setting("devices", "count", "devices of the run over all nodes, one process each; on a CPU, processes"),
        Setting("nodes", "count", "nodes to spread the devices over evenly"),
        Setting("copies", "count", "processes that share each device (parallel=independent)"),
        Setting("parallel", "choice", "ddp: average gradients; fsdp: shard parameters; independent: share nothing",
                ("ddp", "fsdp", "independent")),
        Setting("dp", "count", "data-parallel replicas of a split model (default: devices / (pp x tp))"),
        Setting("tp", "count", "tensor parallelism: devices that share each layer (gpt)"),
        Setting("pp", "count", "pipeline parallelism: devices that each hold consecutive layers (gpt)"),
        Setting("schedule", "choice", "pipeline schedule: one stage per device, or two interleaved stages",
                ("1f1b", "interleaved")),
        Setting("bucket_mb", "count", "size of a gradient bucket in MB (parallel=ddp)"),
        Setting("static_graph", "flag", "tell DDP that every step uses the same parameters"),
        Setting("reshard", "flag", "reshard parameters after forward (parallel=fsdp)"),
        Setting("sync", "flag", "off: skip the exchange of gradients to measure its cost; not valid training"),
        Setting("batch_norm", "count", "batch statistics per device (local), over all ranks (synced) or groups of N",
                ("local", "synced"), least=2),
        Setting("steps", "count", "fixed length: number of steps"),
        Setting("epochs", "count", "fixed length: passes over the data set, with an evaluation after each; with "
                "mode=infer, passes over the test split"),
        Setting("until", "text", "train until the test split reaches this score, for at most `epochs`",
                pattern=r"[A-Za-z_]+\s*(>=|<=)\s*[0-9]{1,6}(\.[0-9]{1,9})?",
                example="a score and its target, such as accuracy>=0.93 or loss<=2.5"),
        Setting("report_at_epochs", "count", "also report the test score after this many epochs"),
        Setting("learning_rate", "text", "peak learning rate (default: the workload's)",
                pattern=r"([0-9]{1,4}(\.[0-9]{0,12})?|\.[0-9]{1,12})(e-?[0-9]{1,2})?",
                example="a number such as 0.1 or 3e-4"),
    )
}  # fmt: skip


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


def unknown_setting(name: str, known: Iterable[str], value: object = None) -> RequestError:
    """With what it is called now, where it was a setting once."""
    now = former_setting(name, value)
    return unknown("setting", name, known) if now is None else RequestError(now)


# Kernels: which implementation of a layer runs, and the settings that `kernels` replaced.


# The settings of Prony before the record's version 3, each with its values as names of kernels: "" is the library's.
FORMER: dict[str, dict[str, str]] = {
    "assignment": {"batched": "batched-assignment", "library": ""},
    "attention": {
        "cudnn": "cudnn-attention", "flash": "flash-attention", "efficient": "efficient-attention",
        "math": "math-attention", "library": "",
    },
    "blocks": {"fused": "fused-blocks", "library": ""},
    "depthwise": {"compiled": "compiled-depthwise", "library": ""},
    "enlarge": {"products": "matmul-upsampling", "library": ""},
    "norms": {"compiled": "compiled-norms", "library": ""},
    "parts": {"own": "low-precision-residual", "library": ""},
    "pooling": {"masked": "masked-roi-align", "library": ""},
    "sampling": {"kernel": "triton-deformable-attention", "library": ""},
    "stem": {"folded": "folded-stem", "library": ""},
    "suppression": {"kernel": "triton-nms", "library": ""},
}  # fmt: skip


def kernel_names(value: object) -> tuple[str, ...]:
    """The kernels that a value of the setting turns on by name."""
    return () if value in (None, DEFAULT, LIBRARY) else tuple(str(value).split(","))


def uses_kernel(settings: Mapping[str, Any], name: str) -> bool:
    """Whether a run with these effective settings has this kernel."""
    return name in kernel_names(settings.get("kernels"))


def join_kernels(names: Iterable[str]) -> str:
    """The names as the setting's value: sorted, each once; `library` where there is none."""
    return ",".join(sorted(set(names))) or LIBRARY


def former_setting(name: str, value: object = None) -> str | None:
    """What a setting of an older Prony is called now, in a sentence; None where it never was one."""
    values = FORMER.get(name)
    if values is None:
        return None
    own = ", ".join(kernel for kernel in values.values() if kernel)
    if value is None or str(value) not in values:
        return f"{name} is now a part of kernels: kernels={own.replace(', ', ' or kernels=')}, or kernels=library"
    if kernel := values[str(value)]:
        return f"{name}={value} is now kernels={kernel}"
    return f"{name}={value} is now kernels=library, or a list of kernels without {own.replace(', ', ' or ')}"


# The target of a run that trains to a quality.


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


# How a trial is divided over devices: ranks, replicas, pipelines and shared layers, and what is refused.


AXES = ("dp", "pp", "tp")  # outermost first: devices that share a layer talk most, and are next to each other
STAGES_A_DEVICE = {"1f1b": 1, "interleaved": 2}
EXCHANGE = {"parallel", "bucket_mb", "static_graph", "sync", "reshard"}
MICRO_BATCHES_A_STAGE = 4  # from here on the time that a pipeline takes to fill hardly counts (Huang et al., GPipe)
# What each form of parallel training may be told besides, with its default.
OPTIONS: dict[str, dict[str, Value]] = {
    "ddp": {"bucket_mb": 25, "static_graph": False, "sync": True},
    "fsdp": {"reshard": True},
    "independent": {},
}
SEVERAL_ONLY = (
    "parallel", "dp", "tp", "pp", "schedule", "bucket_mb", "static_graph", "reshard", "sync", "batch_norm",
)  # fmt: skip


def all_devices(settings: Mapping[str, Value]) -> int:
    """Devices of a run, on all its nodes: one per node where no number is given."""
    return int(settings.get("devices", settings.get("nodes", 1)))


def devices_per_node(settings: Mapping[str, Value]) -> int:
    """They are spread evenly: `check_nodes` has refused what does not divide."""
    return all_devices(settings) // int(settings.get("nodes", 1))


def ranks_per_node(settings: Mapping[str, Value]) -> int:
    """Processes that a node starts: one per device, or `copies` of it."""
    return devices_per_node(settings) * int(settings.get("copies", 1))


def rank_count(settings: Mapping[str, Value]) -> int:
    """Processes that compute, on all nodes."""
    return all_devices(settings) * int(settings.get("copies", 1))


def models(settings: Mapping[str, Value]) -> int:
    """Models that take a batch each in a step, on all nodes: one per rank, where none is split over several."""
    return max(1, rank_count(settings) // devices_of_model(settings))


def form_of(settings: Mapping[str, Value]) -> str:
    """How several ranks share the work; empty for one alone."""
    if rank_count(settings) == 1:
        return ""
    if settings.get("mode", "train") == "train" and rank_count(settings) == devices_of_model(settings):
        return "split"  # one replica, which has nobody to exchange gradients with
    alone = settings.get("mode", "train") == "infer" or int(settings.get("copies", 1)) > 1
    return str(settings.get("parallel", "independent" if alone else "ddp"))


def in_lockstep(settings: Mapping[str, Value]) -> bool:
    """Whether every rank waits for the others in each step."""
    return form_of(settings) not in ("", "independent")


def replicas(settings: Mapping[str, Value]) -> int:
    """Batches that one update of the weights is made of: one per model that exchanges its gradients with others."""
    return models(settings) if in_lockstep(settings) else 1


def devices_of_model(settings: Mapping[str, Value]) -> int:
    """Devices that one replica of the model is split over."""
    return int(settings.get("pp", 1)) * int(settings.get("tp", 1))


def parallel_defaults(requested: Mapping[str, Value]) -> dict[str, Value]:
    """Defaults of every trial, and of one with several ranks."""
    values: dict[str, Value] = {"devices": all_devices(requested), "nodes": 1}
    form = form_of(requested)
    if form:
        values |= {"parallel": form, **OPTIONS[form]} if form in OPTIONS else {}
    if in_lockstep(requested):
        values["graphs"] = False  # an exchange with other processes is not captured
    if form == "fsdp":
        values["compile"] = "off"
    return values | mesh_defaults(requested, rank_count(requested))


def fill_batches(values: dict[str, Value], asked: Iterable[str]) -> None:
    """Micro-batch x accumulation x replicas = global batch: whichever of the two ends was not given."""
    parts = int(values.get("grad_accumulation", 1)) * replicas(values)
    if "global_batch" in asked:
        values["batch_size"] = int(values["global_batch"]) // parts  # it divides: `check_parallel` was there before
    elif in_lockstep(values) and values["batch_size"] != "auto":
        values["global_batch"] = int(values["batch_size"]) * parts


def check_parallel(settings: Mapping[str, Value], asked: set[str]) -> None:
    """Refuse what makes no sense over several devices, or over one."""
    check_nodes(settings)
    ranks, form = rank_count(settings), form_of(settings)
    check_mesh(settings, ranks, asked)
    if ranks == 1:
        for name in SEVERAL_ONLY:
            if name in asked:
                raise RequestError(f"{name} has no meaning on one device; add devices=N, or leave it out")
    _check_global_batch(settings, asked)
    if ranks == 1:
        return
    if int(settings.get("copies", 1)) > 1 and form != "independent":
        raise RequestError(f"copies share a device without waiting for each other; parallel={form} cannot have them")
    for other, options in OPTIONS.items():
        for name in set(options) & asked - set(OPTIONS.get(form, {})):
            raise RequestError(f"{name} belongs to parallel={other}; it has no meaning with parallel={form}")
    if settings.get("batch_size") == "auto":
        raise RequestError(
            "batch_size=auto looks for what one device holds; find it with devices=1 and give that batch_size"
        )
    if form == "independent":
        if "batch_norm" in asked:
            raise RequestError("batch_norm has no meaning with parallel=independent, whose copies exchange nothing")
        return
    if settings.get("mode") == "infer":
        raise RequestError(f"parallel={form} exchanges gradients, and mode=infer has none; use parallel=independent")
    if settings.get("graphs"):
        raise RequestError(f"graphs=on is not offered with parallel={form}: an exchange between processes is not "
                           "captured; use graphs=off")  # fmt: skip
    if form == "fsdp":
        _check_sharded(settings)
    _check_batch_norm(settings, ranks)


def check_nodes(settings: Mapping[str, Value]) -> None:
    """Refuse devices that cannot be spread evenly over the nodes."""
    devices, nodes = all_devices(settings), int(settings.get("nodes", 1))
    if devices % nodes:
        raise RequestError(
            f"devices={devices} nodes={nodes} is not possible: devices are those of all nodes together, spread evenly; "
            f"devices={max(1, round(devices / nodes)) * nodes} would do"
        )


def _check_global_batch(settings: Mapping[str, Value], asked: set[str]) -> None:
    if "global_batch" not in asked:
        return
    if "batch_size" in asked:
        raise RequestError("global_batch and batch_size say the same in two ways; give one of them")
    if form_of(settings) == "independent":
        raise RequestError("global_batch has no meaning with parallel=independent: each copy has its own batch_size")
    whole, pieces = int(settings["global_batch"]), int(settings.get("grad_accumulation", 1))
    parts = pieces * replicas(settings)
    if whole % parts:
        raise RequestError(
            f"global_batch={whole} is not possible: {replicas(settings)} replicas of {pieces} micro-batches do not "
            f"divide it; global_batch={max(1, round(whole / parts)) * parts} would do"
        )


def _check_sharded(settings: Mapping[str, Value]) -> None:
    if settings.get("compile", "off") != "off":
        raise RequestError("compile is not offered with parallel=fsdp; use compile=off")
    if settings.get("precision") == "fp8":
        raise RequestError("precision=fp8 is not offered with parallel=fsdp; use precision=bf16")
    if settings.get("fused") and settings.get("optimizer") == "sgd":
        raise RequestError("torch's fused sgd does not take weights in parts; use fused=off with parallel=fsdp")
    if settings.get("precision") == "fp16":
        raise RequestError(
            "precision=fp16 scales the loss by what a rank sees of its own gradients, and parallel=fsdp shows each "
            "rank others; use bf16"
        )
    if ("epochs" in settings and settings.get("data", "device") not in ("device", "host")) or "until" in settings:
        raise RequestError("parallel=fsdp is not offered for runs that are judged on a test split; use parallel=ddp")


def _check_batch_norm(settings: Mapping[str, Value], ranks: int) -> None:
    span = settings.get("batch_norm", "local")
    if span == "local":
        return
    if devices_of_model(settings) > 1:
        raise RequestError("batch_norm has no meaning for a model that tp or pp splits, which has none; leave it out")
    if str(settings.get("device", "auto")).partition(":")[0] in ("cpu", "mps"):
        raise RequestError("torch synchronises batch norms on a GPU alone; use batch_norm=local")
    if settings.get("parallel", "ddp") != "ddp":
        raise RequestError("batch_norm over several ranks is offered with parallel=ddp alone; use batch_norm=local")
    if isinstance(span, int) and ranks % span:
        raise RequestError(f"batch_norm={span} is not possible: it does not divide the {ranks} ranks")


@dataclass(frozen=True)
class Arrangement:
    """The number of devices along each axis."""

    dp: int
    pp: int
    tp: int

    def place(self, rank: int) -> tuple[int, int, int]:
        """Of a rank along dp, pp and tp."""
        return rank // (self.pp * self.tp), rank // self.tp % self.pp, rank % self.tp


def arrangement(settings: Mapping[str, Value], ranks: int) -> Arrangement:
    """The arrangement that was asked for, on this number of devices; dp, where it is not given, takes the rest."""
    pp, tp = int(settings.get("pp", 1)), int(settings.get("tp", 1))
    dp = int(settings.get("dp", max(1, ranks // (pp * tp))))
    product = dp * pp * tp
    if product != ranks:
        asked = " ".join(f"{name}={settings[name]}" for name in AXES if name in settings)
        uneven = product % int(settings.get("nodes", 1))
        raise RequestError(
            f"{asked} is not possible: dp x pp x tp is {dp} x {pp} x {tp} = {product}, and there are {ranks} devices; "
            f"devices={product}{' nodes=1' if uneven else ''} would do"
        )
    return Arrangement(dp, pp, tp)


def mesh_defaults(requested: Mapping[str, Value], ranks: int) -> dict[str, Value]:
    """Defaults of a model that is split."""
    if devices_of_model(requested) == 1:
        return {}
    shape = arrangement(requested, ranks)
    values: dict[str, Value] = {"dp": shape.dp, "pp": shape.pp, "tp": shape.tp, "compile": "off"}
    if shape.pp > 1:
        values |= {"schedule": "1f1b", "grad_accumulation": MICRO_BATCHES_A_STAGE * shape.pp}
        if requested.get("parallel") == "fsdp":
            values["reshard"] = False  # else weights would be gathered anew for every micro-batch
    return values


def check_mesh(settings: Mapping[str, Value], ranks: int, asked: set[str]) -> None:
    """Refuse an arrangement that makes no sense for any model."""
    if not asked & {*AXES, "schedule"}:
        return
    shape = arrangement(settings, ranks)
    if shape.pp == 1 and "schedule" in asked:
        raise RequestError("schedule is the order of a pipeline's micro-batches; add pp=N, or leave it out")
    if devices_of_model(settings) == 1:
        return
    named = " ".join(f"{name}={settings[name]}" for name in ("pp", "tp") if int(settings.get(name, 1)) > 1)
    if settings.get("mode") == "infer":
        raise RequestError(f"{named} is offered for training alone; mode=infer wants the whole model on a device")
    if settings.get("parallel") == "independent":
        raise RequestError(f"parallel=independent has copies that wait for nobody; {named} makes devices wait for each "
                           "other")  # fmt: skip
    if shape.dp == 1:
        for name in sorted(EXCHANGE & asked):
            raise RequestError(f"{name} is about gradients that replicas exchange, and {named} leaves one replica")
    if settings.get("precision") == "fp16":
        raise RequestError(
            f"precision=fp16 scales the loss by what a rank sees of its own gradients, and {named} shows each rank "
            "others; use bf16"
        )
    if settings.get("precision") == "fp8":
        raise RequestError(f"precision=fp8 scales whole weights, and {named} leaves a device a part of them; use bf16")
    if settings.get("compile", "off") not in ("off", "default"):
        raise RequestError(
            f"compile={settings['compile']} makes device graphs of its own, and an exchange between processes is not "
            f"captured; {named} takes compile=default, which compiles each layer"
        )
    if "weights" in settings:
        raise RequestError(f"weights is not offered with {named}: each device draws its part of the weights")
    if ("epochs" in settings and settings.get("data", "device") not in ("device", "host")) or "until" in settings:
        raise RequestError(f"{named} is not offered for runs that are judged on a test split; use parallel=ddp")
    if shape.pp > 1:
        _check_pipeline(settings, shape)


def _check_pipeline(settings: Mapping[str, Value], shape: Arrangement) -> None:
    for name, plain in (("sync", True), ("static_graph", False)):
        if settings.get(name, plain) != plain:
            shown = "on" if settings[name] else "off"
            raise RequestError(f"{name}={shown} is not offered with pp: torch's pipeline itself says when to exchange")
    micro_batches = settings.get("grad_accumulation")
    if micro_batches is None:  # a default that fits
        return
    count = int(micro_batches)
    if count < shape.pp:
        raise RequestError(
            f"grad_accumulation={count} is not possible: a pipeline of {shape.pp} stages needs as many micro-batches "
            f"at least; grad_accumulation={shape.pp} would do"
        )
    if settings.get("schedule") == "interleaved" and count % shape.pp:
        raise RequestError(
            f"grad_accumulation={count} is not possible: schedule=interleaved takes micro-batches in rounds of "
            f"{shape.pp}; grad_accumulation={round(count / shape.pp) * shape.pp} would do"
        )


def check_model(name: str, shape: Mapping[str, int], settings: Mapping[str, Value]) -> None:
    """Refuse to split a model that does not divide: `shape` has its layers, heads and vocabulary."""
    pp, tp = int(settings.get("pp", 1)), int(settings.get("tp", 1))
    for part in ("heads", "vocabulary"):
        if shape[part] % tp:
            raise RequestError(f"tp={tp} is not possible: it does not divide the {shape[part]} {part} of {name}")
    schedule = str(settings.get("schedule", "1f1b"))
    stages = pp * STAGES_A_DEVICE[schedule] if pp > 1 else 1
    if shape["layers"] % stages:
        raise RequestError(
            f"pp={pp} schedule={schedule} is not possible: its {stages} stages do not divide the {shape['layers']} "
            f"layers of {name}"
        )


@dataclass(frozen=True)
class Wire:
    """What one device sends in one step, and how that is counted; None, and why it is not."""

    bytes_sent: float | None
    how: str
