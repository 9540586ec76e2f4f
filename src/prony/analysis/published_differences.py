"""What is not the same behind a published figure and ours, so that nobody reads several changes as one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from prony.analysis.published_measures import global_batch
from prony.analysis.settings import Difference, Record, settings_of
from prony.catalog.published import Figure
from prony_node.contract.parallel import all_devices

NOT_STATED = "not stated"
MADE = {"device": "made on the device", "host": "made in host memory", "generated": "files that Prony wrote"}


def differences(figure: Figure, record: Record) -> list[Difference]:
    """Each thing that differs: a is published, b ours."""
    ours = settings_of(record)
    found = [
        Difference("device", figure.accelerator, device_name(record)),
        Difference("devices", figure.devices, all_devices(ours)),
        Difference("framework", figure.framework, "pytorch"),
        Difference("precision", _precision(figure), ours.get("precision")),
        Difference("data", figure.dataset or NOT_STATED, _data(str(ours.get("data", "device")))),
        *_batch(figure, record),
    ]
    if figure.workers_per_device is not None:
        found.append(Difference("workers", figure.workers_per_device, ours.get("workers", "none needed")))
    if ours.get("compile", "off") != "off":
        found.append(Difference("compiled", NOT_STATED, "by torch.compile"))
    if ours.get("size") == "tiny":
        found.append(Difference("model", "the whole", "a tiny one of its kind"))
    return [one for one in found if not _same(one)]


@dataclass(frozen=True)
class Gathered:
    """One thing that differs, over all the cells of a table."""

    name: str
    published: tuple[str, ...]
    ours: tuple[str, ...]


def gather(found: Iterable[tuple[Figure, Sequence[Difference]]]) -> list[Gathered]:
    """Of figures with what differs of each. What only some systems do not state is said with their names."""
    every = list(found)
    names: dict[str, tuple[dict[str, None], dict[str, None]]] = {}
    for _, differs in every:
        for one in differs:
            there, here = names.setdefault(one.name, ({}, {}))
            there[str(one.a)] = None
            here[str(one.b)] = None
    return [
        Gathered(name, tuple(f"{text}{_of_systems(name, text, every)}" for text in there), tuple(here))
        for name, (there, here) in names.items()
    ]


def _of_systems(name: str, text: str, found: Iterable[tuple[Figure, Sequence[Difference]]]) -> str:
    """Which systems do not state it, where the others do."""
    silent: dict[str, None] = {}
    others = set()
    for figure, differs in found:
        if any((one.name, one.a) == (name, NOT_STATED) for one in differs):
            silent[figure.system] = None
        else:
            others.add(figure.system)
    return f" ({', '.join(silent)})" if text == NOT_STATED and others and others.isdisjoint(silent) else ""


def device_name(record: Record) -> str:
    devices = record["facts"].get("devices") or []
    if devices and devices[0].get("name"):
        return str(devices[0]["name"])
    cpu = ((record["facts"].get("host") or {}).get("cpu") or {}).get("model")
    return str(cpu or settings_of(record).get("device", "unknown"))


def _precision(figure: Figure) -> str:
    """What a publication on PyTorch calls fp32 is torch's default unless it says more: convolutions use TF32."""
    torch_default = (figure.framework, figure.precision) == ("pytorch", "fp32")
    return "default" if torch_default else figure.precision or NOT_STATED


def _batch(figure: Figure, record: Record) -> list[Difference]:
    found = []
    if figure.global_batch is not None:
        found.append(Difference("global batch", figure.global_batch, global_batch(record)))
    if figure.batch_per_device is not None or not found:
        ours = settings_of(record).get("batch_size")  # of one pass through the model, as publications count it
        found.append(Difference("batch per device", figure.batch_per_device or NOT_STATED, ours))
    return found


def _data(value: str) -> str:
    return MADE.get(value, PurePath(value).name)


def _same(one: Difference) -> bool:
    published, ours = str(one.a).lower(), str(one.b).lower()
    if one.name == "device":  # A100-80GB is in NVIDIA A100-SXM4-80GB
        return all(word in ours for word in published.split("-"))
    if one.name == "data":
        return published == "synthetic" or published in ours.replace("-", "")
    return published == ours
