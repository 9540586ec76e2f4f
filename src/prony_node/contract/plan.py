"""The plan: everything the node needs to make one run."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any

from prony_node.contract.digits import is_digits
from prony_node.contract.errors import NewerSchema, RequestError
from prony_node.contract.trial import Trial

# A device that was idle is cool and boosts for seconds: an H200 was 2 to 4 % faster then.
SUSTAINED_WINDOW_S, SUSTAINED_WARM_UP_S, SUSTAINED_REPEATS = 20.0, 10.0, 3

PLAN_VERSION = 1
PLAN_SCHEMA = f"prony.plan/{PLAN_VERSION}"


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
    study: dict[str, Any] | None = (
        None  # which study asked for it: name, part, order, seed, turn (its place in the order)
    )
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
