"""How the devices of a run are arranged: replicas (dp), each a pipeline (pp) of devices that share every layer (tp)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from prony_node.contract.errors import RequestError
from prony_node.contract.settings import Value

AXES = ("dp", "pp", "tp")  # outermost first: devices that share a layer talk most, and are next to each other
STAGES_A_DEVICE = {"1f1b": 1, "interleaved": 2}
EXCHANGE = {"parallel", "bucket_mb", "compression", "static_graph", "sync", "reshard"}
MICRO_BATCHES_A_STAGE = 4  # from here on the time that a pipeline takes to fill hardly counts (Huang et al., GPipe)


@dataclass(frozen=True)
class Arrangement:
    """So many devices along each axis."""

    dp: int
    pp: int
    tp: int

    def place(self, rank: int) -> tuple[int, int, int]:
        """Of a rank along dp, pp and tp."""
        return rank // (self.pp * self.tp), rank // self.tp % self.pp, rank % self.tp


def devices_of_model(settings: Mapping[str, Value]) -> int:
    """Devices that one replica of the model is split over."""
    return int(settings.get("pp", 1)) * int(settings.get("tp", 1))


def arrangement(settings: Mapping[str, Value], ranks: int) -> Arrangement:
    """What was asked for on so many devices; dp, where it was not given, takes what is left."""
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
    """What holds for a model that is split, where nobody says otherwise."""
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
