"""How a trial is divided over devices: ranks, replicas, pipelines and shared layers, and what is refused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from prony_node.contract.errors import RequestError
from prony_node.contract.settings import Value

AXES = ("dp", "pp", "tp")  # outermost first: devices that share a layer talk most, and are next to each other
STAGES_A_DEVICE = {"1f1b": 1, "interleaved": 2}
EXCHANGE = {"parallel", "bucket_mb", "static_graph", "sync", "reshard"}
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
    """Devices of a run, on all its nodes: one a node where nobody says how many."""
    return int(settings.get("devices", settings.get("nodes", 1)))


def devices_per_node(settings: Mapping[str, Value]) -> int:
    """They are spread evenly: `check_nodes` has refused what does not divide."""
    return all_devices(settings) // int(settings.get("nodes", 1))


def ranks_per_node(settings: Mapping[str, Value]) -> int:
    """Processes that a node starts: one a device, or `copies` of it."""
    return devices_per_node(settings) * int(settings.get("copies", 1))


def rank_count(settings: Mapping[str, Value]) -> int:
    """Processes that compute, on all nodes."""
    return all_devices(settings) * int(settings.get("copies", 1))


def models(settings: Mapping[str, Value]) -> int:
    """Models that take a batch each in a step, on all nodes: one a rank, where none is split over several."""
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
    """Batches that one update of the weights is made of: one a model that exchanges its gradients with others."""
    return models(settings) if in_lockstep(settings) else 1


def parallel_defaults(requested: Mapping[str, Value]) -> dict[str, Value]:
    """What holds where nobody says otherwise: of every trial, and of one with several ranks."""
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
