"""The trial: a workload with its settings as requested, and its hash. The plan: all that the node needs to run it.

The last part refuses settings that do not go together.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

from prony_node.contract.errors import NewerSchema, RequestError, is_digits
from prony_node.contract.files import canonical_json
from prony_node.contract.settings import Value, check_parallel


def settings_hash(workload: str, settings: Mapping[str, Value | float | None]) -> str:
    """The identity of a workload with these settings, whatever their order."""
    text = canonical_json({"workload": workload, "settings": settings})
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Trial:
    """What was asked for; a setting that was not asked for takes its default on the machine."""

    workload: str
    settings: dict[str, Value] = field(default_factory=dict)

    @cached_property  # asked for many times in a study of many trials
    def hash(self) -> str:
        return settings_hash(self.workload, self.settings)

    def to_json(self) -> dict[str, Any]:
        return {"hash": self.hash, "workload": self.workload, "settings": self.settings}

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Trial:
        workload, settings = document["workload"], dict(document["settings"])
        if not isinstance(workload, str) or not all(isinstance(name, str) for name in settings):
            raise TypeError("a trial is the name of a workload and settings by name")
        if not all(isinstance(value, str | int) for value in settings.values()):
            raise TypeError("a setting is a word, a whole number or on/off")
        return cls(workload, settings)

    def __str__(self) -> str:
        shown = {True: "on", False: "off"}
        words = [f"{name}={shown.get(value, value)}" if isinstance(value, bool) else f"{name}={value}"
                 for name, value in self.settings.items()]  # fmt: skip
        return " ".join([self.workload, *words])


PLAN_VERSION = 1
PLAN_SCHEMA = f"prony.plan/{PLAN_VERSION}"
# A device that was idle is cool and boosts for seconds: an H200 was 2 to 4 % faster then.
SUSTAINED_WINDOW_S, SUSTAINED_WARM_UP_S, SUSTAINED_REPEATS = 20.0, 10.0, 3


@dataclass(frozen=True)
class Stop:
    """When a run has seen enough."""

    tolerance: float = 0.01  # half-width of the 95 % interval over the rate
    min_time_s: float = 10.0
    max_time_s: float = 120.0
    warm_time_s: float = 0.0  # steps are taken for this long before the window, so that the device is warm

    def sustained(self) -> Stop:
        """The rule for a rate that is published: a window of 20 s or more, on a warm device."""
        return replace(
            self,
            min_time_s=max(self.min_time_s, SUSTAINED_WINDOW_S),
            max_time_s=max(self.max_time_s, SUSTAINED_WINDOW_S),
            warm_time_s=SUSTAINED_WARM_UP_S,
        )


@dataclass(frozen=True)
class Peak:
    """The dense peak of a device at a precision, with where the figure comes from."""

    device: str  # a pattern matched against the device's name
    precision: str
    flops: float
    source: str


@dataclass(frozen=True)
class Plan:
    """One run of one trial."""

    run_id: str
    trial: Trial
    repeat: int = 0
    stop: Stop = field(default_factory=Stop)
    peaks: tuple[Peak, ...] = ()
    hung_after_s: float = 300.0  # no progress of steps or phases for this long
    cold_start_after_s: float = 1800.0  # the same where a compiler, a download or a test split is silent for long
    rendezvous_after_s: float = 300.0  # for all processes of a run on several devices to find each other
    time_limit_s: float | None = None  # for the whole run; None: as long as it takes
    file: dict[str, Any] | None = None  # a user's own model file: its path, sha256 and what it states (workload)
    energy: bool = True  # sample power beside the run, where there is a sensor
    cut_short: bool = False  # a try of a batch: the same run, but a few steps of it, and with a little less memory
    walk: tuple[int, ...] = ()  # batch sizes to screen one after the other in one process, in this order
    # Which study asked for it: name, part, order, seed, turn (its place in the order).
    study: dict[str, Any] | None = None
    created: str = ""

    def to_json(self) -> dict[str, Any]:
        document = asdict(self)
        document["trial"] = self.trial.to_json()
        return {"schema": PLAN_SCHEMA, **document}

    @classmethod
    def from_json(cls, document: Any) -> Plan:
        check_schema(document, "prony.plan", PLAN_VERSION)
        try:
            limit_s = document.get("time_limit_s")
            return cls(
                run_id=str(document["run_id"]),
                trial=Trial.from_json(document["trial"]),
                repeat=int(document.get("repeat", 0)),
                stop=Stop(**{name: float(value) for name, value in document.get("stop", {}).items()}),
                peaks=tuple(Peak(**peak) for peak in document.get("peaks", ())),
                hung_after_s=float(document.get("hung_after_s", 300.0)),
                cold_start_after_s=float(document.get("cold_start_after_s", 1800.0)),
                rendezvous_after_s=float(document.get("rendezvous_after_s", 300.0)),
                time_limit_s=None if limit_s is None else float(limit_s),
                file=None if document.get("file") is None else dict(document["file"]),
                energy=bool(document.get("energy", True)),
                cut_short=bool(document.get("cut_short", False)),
                walk=tuple(int(size) for size in document.get("walk", ())),
                study=None if document.get("study") is None else dict(document["study"]),
                created=str(document.get("created", "")),
            )
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise RequestError(f"this is not a complete plan: {type(error).__name__} {error}") from error


def check_schema(document: Any, name: str, newest: int) -> int:
    """The version of a document, refused when it is not ours or newer than this Prony."""
    schema = document.get("schema") if isinstance(document, dict) else None
    if not isinstance(schema, str) or not schema.startswith(f"{name}/"):
        raise RequestError(f"expected a document of schema {name}/{newest}, found {schema!r}")
    number = schema.partition("/")[2]
    if not is_digits(number) or len(number) > 9:
        raise RequestError(f"{schema!r} has no version number")
    if int(number) > newest:
        raise NewerSchema(
            f"{schema} was written by a newer Prony; this one reads up to {name}/{newest}. Upgrade Prony."
        )
    return int(number)


TRAINING_ONLY = (
    "optimizer", "fused", "grad_accumulation", "recompute", "augment", "until", "report_at_epochs",
    "learning_rate",
)  # fmt: skip
INFERENCE_ONLY = ("phase",)
LOADER_ONLY = ("workers", "prefetch", "pin_memory")
DATA_SET_ONLY = (
    "stage", "data_samples", "test_samples", "data_format", "decode", "cache", "augment", "until", "report_at_epochs",
)  # fmt: skip


def reads_data_set(settings: Mapping[str, Value]) -> bool:
    """Whether samples come from files: generated ones, or a data set that the user has."""
    return settings.get("data", "device") not in ("device", "host")


def learns_to_quality(settings: Mapping[str, Value]) -> bool:
    """Whether a run trains for whole epochs on a data set and is judged on its test split."""
    trains = settings.get("mode", "train") == "train" and reads_data_set(settings)
    return trains and ("epochs" in settings or "until" in settings)


def judges_split(settings: Mapping[str, Value]) -> bool:
    """Whether an inference answers a whole test split, where its answers can be judged."""
    return settings.get("mode") == "infer" and reads_data_set(settings) and "epochs" in settings


def check_combination(settings: dict[str, Value], given: set[str] | None = None) -> None:
    """Refuse what cannot work together, whether as requested or as resolved on a machine.

    `given` are the names that a person set; only those can be out of place, a default never is.
    """
    asked = set(settings) if given is None else given
    if settings.get("mode") == "infer":
        for name in TRAINING_ONLY:
            if name in asked:
                raise RequestError(f"{name} has no meaning with mode=infer; leave it out")
    if settings.get("mode") == "train":
        for name in INFERENCE_ONLY:
            if name in asked:
                raise RequestError(f"{name} has no meaning with mode=train; add mode=infer or leave it out")
    _check_data(settings, asked)
    if settings.get("compile") == "off" and "compile_cache" in asked:
        raise RequestError("compile_cache has no meaning with compile=off; leave one of them out")
    if settings.get("compile") == "reduce-overhead" and settings.get("graphs"):
        raise RequestError(
            "compile=reduce-overhead makes device graphs of its own, so graphs=on cannot capture it; "
            "use compile=default graphs=on, or graphs=off"
        )
    if "steps" in settings and "epochs" in settings:
        raise RequestError("steps and epochs are both lengths; give one of them")
    if settings.get("precision") == "fp16" and settings.get("graphs") and settings.get("fused") is False:
        raise RequestError(
            "precision=fp16 graphs=on needs fused=on: other optimizers ask the host about overflow each step"
        )
    if learns_to_quality(settings) and settings.get("graphs") and settings.get("fused") is False:
        raise RequestError("a learning rate that changes inside a captured step needs fused=on; add it, or graphs=off")
    if settings.get("workers") == 0 and "prefetch" in asked:
        raise RequestError("prefetch needs loader workers; workers=0 loads in the rank itself")
    device = str(settings.get("device", "auto"))
    kind = device.partition(":")[0]
    if settings.get("graphs") and kind in ("cpu", "mps", "xpu"):
        raise RequestError(f"graphs=on needs a device with graphs (CUDA, ROCm); device={device} has none")
    if settings.get("precision") == "tf32" and kind in ("cpu", "mps", "xpu"):
        raise RequestError(f"precision=tf32 is a mode of CUDA's matrix units; device={device} has none")
    pure_sgd = (settings.get("precision"), settings.get("optimizer")) == ("bf16-pure", "sgd")
    if pure_sgd and settings.get("fused") and kind == "cpu":
        raise RequestError(
            "torch's fused sgd leaves 16-bit weights as they are on a CPU, so that nothing would be trained; "
            "use fused=off with precision=bf16-pure"
        )
    if settings.get("precision") == "fp64" and kind == "mps":
        raise RequestError("precision=fp64 is not possible: device=mps has no such numbers")
    if settings.get("pin_memory") and kind in ("cpu", "mps"):
        raise RequestError(f"pin_memory=on is for copies to a device's own memory; device={device} has none")
    _check_memory(settings, kind)
    check_parallel(settings, asked)


def _check_data(settings: dict[str, Value], asked: set[str]) -> None:
    data = settings.get("data", "device")
    if data == "device":
        for name in LOADER_ONLY:
            if name in asked:
                raise RequestError(f"{name} has no meaning with data=device; add data=host or leave it out")
    if not reads_data_set(settings):
        for name in DATA_SET_ONLY:
            if name in asked:
                raise RequestError(f"{name} has no meaning with data={data}; give a data set, data=PATH or generated")
    if "data_format" in asked and data != "generated":
        raise RequestError("data_format says how data=generated is written; a data set that is there has its own")
    if "stage" in asked and data == "generated":
        raise RequestError(
            "stage copies a data set that lies elsewhere; PRONY_DATA says where data=generated is written"
        )
    if "until" in asked and "steps" in asked:
        raise RequestError("until is judged after whole epochs; give epochs instead of steps, or leave it out")
    _check_reported_epochs(settings, asked)
    decode = settings.get("decode", "cpu")
    if settings.get("cache") == "device" and decode != "cpu" and {"cache", "decode"} <= asked:
        raise RequestError(f"cache=device holds decoded images, so there is nothing left for decode={decode}")
    if decode == "both" and settings.get("workers") == 0:
        raise RequestError("decode=both divides images between worker processes and the device; it needs workers")


def _check_reported_epochs(settings: dict[str, Value], asked: set[str]) -> None:
    if "report_at_epochs" not in asked:
        return
    wanted, epochs = int(settings["report_at_epochs"]), settings.get("epochs")
    if epochs is None and "until" not in settings:
        raise RequestError(f"report_at_epochs is of a run that trains for epochs; add epochs={wanted} or more")
    if epochs is not None and wanted > int(epochs):
        raise RequestError(f"report_at_epochs={wanted} is not possible: the run ends after epochs={epochs}")


def _check_memory(settings: dict[str, Value], kind: str) -> None:
    if kind == "mps" and "memory_cap" in settings:
        raise RequestError("memory_cap cannot be held on device=mps, whose memory torch does not tell; leave it out")
    if settings.get("batch_size") != "auto":
        return
    if kind == "mps":
        raise RequestError("batch_size=auto needs to know what is free on device=mps, which torch does not tell")
    if kind == "cpu" and "memory_cap" not in settings:
        raise RequestError(
            "batch_size=auto looks for what fits a device's own memory, and device=cpu has none; "
            "add memory_cap=N (GiB) to say how much may be used, or give a batch_size"
        )
