"""A trial: a workload with its settings as requested. Its hash is its identity."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

from prony_node.contract.errors import RequestError
from prony_node.contract.files import canonical_json
from prony_node.contract.settings import Value


def settings_hash(workload: str, settings: dict[str, Value]) -> str:
    """The identity of a workload with these settings, whatever their order."""
    text = canonical_json({"workload": workload, "settings": settings})
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Trial:
    """What was asked for; a setting that was not asked for takes its default on the machine."""

    workload: str
    settings: dict[str, Value] = field(default_factory=dict)

    @property
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


TRAINING_ONLY = ("optimizer", "fused", "grad_accumulation", "recompute")
INFERENCE_ONLY = ("phase",)
LOADER_ONLY = ("workers", "prefetch", "pin_memory")


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
    if settings.get("data", "device") == "device":
        for name in LOADER_ONLY:
            if name in asked:
                raise RequestError(f"{name} has no meaning with data=device; add data=host or leave it out")
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
    if settings.get("pin_memory") and kind in ("cpu", "mps"):
        raise RequestError(f"pin_memory=on is for copies to a device's own memory; device={device} has none")
    _check_memory(settings, kind)


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
