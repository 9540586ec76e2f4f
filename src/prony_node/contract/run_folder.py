"""A finished run folder: what a rank found, the record assembled of it, its manifest, and what verification found."""

# ruff: noqa: RUF009  optional(), sparse() and empty() make dataclass fields

from __future__ import annotations

import functools
import hashlib
import os
import shlex
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Literal

from prony_node.contract import files
from prony_node.contract.errors import RequestError
from prony_node.contract.facts import (
    ContainerFacts,
    DeviceFacts,
    GatheredFacts,
    HostConditions,
    HostFacts,
    Provenance,
    SoftwareFacts,
    SourceFacts,
)
from prony_node.contract.record import (
    FAILURES,
    RECORD_VERSION,
    Check,
    CollectiveCurve,
    EnergyDetail,
    Failure,
    Learning,
    Metric,
    ParallelWork,
    Phase,
    Plain,
    Record,
    Status,
    Steady,
    WorkDone,
    new_record,
    validate_record,
)
from prony_node.contract.safe_files import NotPlain, RunEntry, open_plain, walk_run
from prony_node.contract.trial import Plan, check_schema, settings_hash
from prony_node.contract.typed import JsonObject, Malformed, Typed, decode, empty, encode, optional, overlaid, sparse

Interval = tuple[float, ...]  # two instants on the monotonic clock


@dataclass(frozen=True)
class Findings:
    """Some metrics, checks and phases, found together."""

    metrics: Mapping[str, Metric] = empty()
    checks: tuple[Check, ...] = ()
    phases: Mapping[str, Phase] = empty()


@dataclass(frozen=True)
class EffectiveSettings:
    """The settings of a run as they took effect, as effective.json has them before the first step."""

    unit: str | None = None
    effective: Mapping[str, Plain] = empty()
    more: JsonObject = empty()


@dataclass(frozen=True)
class RankBinding:
    """The cores and memory that a rank was bound to, or why it was not."""

    rank: int | None = sparse()
    bind: str | None = sparse()
    cores: str | None = sparse()
    node: int | None = sparse()
    memory: str | None = sparse()
    reason: str | None = sparse()
    device: str | None = sparse()  # its place on the PCI bus
    more: JsonObject = empty()


@dataclass(frozen=True)
class RankTimes:
    """When the first rank of a node did what, by its own clock; the boot says which machine's that is."""

    node: int
    rank: int
    host: str | None = None
    boot_id: str | None = None
    loop_monotonic: Interval | None = None
    window_monotonic: Interval | None = None
    training_monotonic: tuple[Interval, ...] | None = None
    device_from_monotonic: float | None = None
    more: JsonObject = empty()

    @property
    def node_name(self) -> str:
        """The node for a person."""
        return f"node {self.node} ({self.host})"


@dataclass(frozen=True)
class RankResult:
    """All that a rank knows of its run. A failure keeps what was known by then."""

    phases: Mapping[str, Phase] = empty()
    metrics: Mapping[str, Metric] = empty()
    checks: tuple[Check, ...] = ()
    unit: str | None = optional()
    effective: Mapping[str, Plain] | None = optional()
    effective_hash: str | None = optional()
    steady: Steady | None = optional()
    work: WorkDone | None = optional()
    learning: Learning | None = optional()
    data: JsonObject | None = optional()
    auto_batch: tuple[JsonObject, ...] | None = optional()
    parallel: ParallelWork | None = optional()
    collective: CollectiveCurve | None = optional()
    binding: tuple[RankBinding, ...] | None = optional()
    nodes: tuple[RankTimes, ...] | None = optional()  # when each node measured, by its own clock
    stop_reason: str | None = optional()
    series_period: int | None = optional()  # with the step series it makes the estimate again
    device_from_monotonic: float | None = optional()  # until here the device was not ours
    loop_monotonic: Interval | None = optional()
    window_monotonic: Interval | None = optional()
    training_monotonic: tuple[Interval, ...] | None = optional()
    memory_room: int | None = optional()  # bytes that the run might take
    memory_free: str | None = optional()  # before anything was allocated, in words
    memory_held: int | None = optional()
    status: Status | None = optional()
    failure: Failure | None = optional()
    imported: Mapping[str, str | None] | None = optional()  # versions of the libraries that the rank imported
    more: JsonObject = empty()

    @property
    def complete(self) -> bool:
        """Whether the rank measured all that was asked for."""
        return self.status == "ok"

    @property
    def window(self) -> tuple[float, float] | None:
        """The steady window on the rank's clock; None where there is none."""
        edges = self.window_monotonic
        return (edges[0], edges[1]) if edges is not None and len(edges) == 2 else None

    def with_findings(self, found: Findings) -> RankResult:
        """With these too. A metric, phase or check takes the place of an earlier one of its name."""
        return replace(
            self,
            metrics={**self.metrics, **found.metrics},
            phases={**self.phases, **found.phases},
            checks=(*without(self.checks, {check.name for check in found.checks}), *found.checks),
        )

    def added(
        self,
        metrics: Mapping[str, Metric] | None = None,
        checks: tuple[Check, ...] = (),
        phases: Mapping[str, Phase] | None = None,
    ) -> RankResult:
        return self.with_findings(Findings(metrics or {}, checks, phases or {}))

    def steps_taken(self) -> int:
        """Steps of the model until now, but for those after the window."""
        names = ("cold_start", "warm_up", "steady", "after_stop")
        return sum(int(self.phases[name].steps or 0) for name in names if name in self.phases)


def without(checks: Iterable[Check], names: set[str]) -> tuple[Check, ...]:
    """The checks of other names."""
    return tuple(check for check in checks if check.name not in names)


ROOMS_OF_FACTS = ("host", "software", "container", "environment", "source")
RESULT_FIELDS = (
    "unit", "metrics", "phases", "steady", "checks", "work", "learning", "data", "auto_batch",
    "parallel", "collective", "binding",
)  # fmt: skip
NO_RECORD = "the rank's result does not make a record"
UNUSABLE = (RequestError, TypeError, ValueError, AttributeError, KeyError)  # what a malformed part raises


@dataclass(frozen=True)
class Parts:
    """What was written before the record; whatever is absent is empty."""

    result: RankResult = field(default_factory=RankResult)  # by the rank, at its end
    facts: GatheredFacts = field(default_factory=GatheredFacts)  # by the supervisor, at its start
    device: DeviceFacts | None = None  # by the rank, once it has the device
    effective: EffectiveSettings = field(default_factory=EffectiveSettings)  # by the rank, before its first step
    others: tuple[DeviceFacts | None, ...] = ()  # the devices of ranks other than the first

    @property
    def effective_settings(self) -> Mapping[str, Plain]:
        """As the rank's result has them; of a run without one, as it wrote them before its first step."""
        return self.result.effective or self.effective.effective

    @property
    def complete(self) -> bool:
        """Whether the rank measured all that was asked for."""
        return self.result.complete


def read_parts(folder: Path) -> Parts:
    """The parts as far as they were written whole."""
    others = [path / files.DEVICE for path in files.rank_folders(folder).values() if path != folder]
    return parse_parts(
        files.read_json(folder / files.RESULT),
        files.read_json(folder / files.FACTS),
        files.read_json(folder / files.DEVICE),
        files.read_json(folder / files.EFFECTIVE),
        [files.read_json(path) for path in others],
    )


def parse_parts(
    result: Any = None, facts: Any = None, device: Any = None, effective: Any = None, others: Sequence[Any] = ()
) -> Parts:
    """The parts from their documents."""
    return Parts(
        parse_result(result),
        _gathered(facts if isinstance(facts, dict) else {}),
        parse_device(device),
        _lenient(EffectiveSettings, effective) or EffectiveSettings(),
        tuple(map(parse_device, others)),
    )


def parse_result(document: Any) -> RankResult:
    """The result of a rank; one that makes no sense is a failure that says so."""
    if not isinstance(document, dict):
        return RankResult()
    failure = parse_failure(document.get("failure"))
    try:
        found = decode(RankResult, {name: own for name, own in document.items() if name != "failure"})
    except Malformed as error:
        return RankResult(status="failed", failure=Failure("exception", f"{NO_RECORD}: its {error}"))
    return replace(found, failure=failure)


def parse_failure(document: Any) -> Failure | None:
    """A failure that a rank has written down; None where it is no object."""
    if not isinstance(document, dict):
        return None
    kind = document.get("kind")
    return _lenient(Failure, {**document, "kind": kind if kind in FAILURES else "exception"})


def parse_device(document: Any) -> DeviceFacts | None:
    """The device of a rank from device.json; None where that is empty, or no object."""
    return _lenient(DeviceFacts, document) if document else None


def _gathered(document: dict[str, Any]) -> GatheredFacts:
    rooms = {field.name: document.get(field.name) for field in fields(GatheredFacts)}
    return GatheredFacts(
        _lenient(HostFacts, rooms["host"]), _lenient(SoftwareFacts, rooms["software"]),
        _lenient(ContainerFacts, rooms["container"]), _environment(rooms["environment"]),
        _lenient(SourceFacts, rooms["source"]), _lenient(Provenance, rooms["fingerprint"]),
    )  # fmt: skip


def _environment(document: Any) -> dict[str, str] | None:
    if not isinstance(document, dict):
        return None
    return {name: value for name, value in document.items() if isinstance(value, str)}


def _lenient(kind: type[Typed], document: Any) -> Typed | None:
    """Facts, without what is of another kind than Prony writes: an odd fact costs itself alone, with its reason."""
    if not isinstance(document, dict):
        return None
    while True:
        try:
            return decode(kind, document)
        except Malformed as error:
            name = error.path[0] if error.path else ""
            if name not in document:
                return None
            told = document.get("missing") if name != "missing" else []
            odd = {"what": name, "reason": f"it was written as what {error.message}"}
            document = {own: value for own, value in document.items() if own != name}
            document["missing"] = [*(told if isinstance(told, list) else []), odd]


@dataclass(frozen=True)
class EndedRank:
    """A rank that the launcher saw end badly; a negative exit status is a signal."""

    rank: int
    pid: int
    exit_status: int
    more: JsonObject = field(default_factory=dict)


@dataclass(frozen=True)
class LauncherReport:
    """How torch's launcher ended, as launcher.json has it: why it could not start, and the ranks that ended badly."""

    failure: Failure | None = None
    ranks: tuple[EndedRank, ...] = ()
    more: JsonObject = field(default_factory=dict)


def read_launcher_report(folder: Path) -> LauncherReport | None:
    """What the launcher wrote; None while there is nothing, or nothing that can be read."""
    return _lenient(LauncherReport, files.read_json(folder / files.LAUNCHER))


@dataclass(frozen=True)
class NodeEnd:
    """How the part of a run on one node ended, and what was seen there, as node.json has it."""

    node: int
    host: str | None = None
    failure: Failure | None = None
    watched: HostConditions = field(default_factory=HostConditions)
    more: JsonObject = field(default_factory=dict)


def read_node_end(folder: Path) -> NodeEnd | None:
    """What the supervisor of a node wrote at its end; None while there is none, or none that can be read."""
    return _lenient(NodeEnd, files.read_json(folder / files.NODE))


# The record, assembled from the parts.


@dataclass(frozen=True)
class Energy:
    """What the run cost, as the supervisor knows it from the sampler."""

    metrics: Mapping[str, Metric] = field(default_factory=dict)
    checks: list[Check] = field(default_factory=list)
    detail: EnergyDetail | None = None


def assemble(
    plan: Plan,
    parts: Parts,
    *,
    started: str,
    ended: str,
    failure: Failure | None = None,
    checks: Iterable[Check] = (),
    energy: Energy | None = None,
) -> dict[str, Any]:
    """The record of a run. `failure` is how the run ended, where someone other than the rank knows it.

    A result that was whole before the run ended badly stays good: what was measured was measured.
    The bad end is then a check.
    """
    more = [*checks, *(energy.checks if energy else ())]
    if parts.complete and failure is not None:
        more.append(Check("supervisor", "warn", f"all was measured, but then: {failure.message}"))
        failure = None
    elif not parts.complete:
        failure = failure or _failure_of(parts.result)
    try:
        return _record(plan, parts, started, ended, failure, more, energy)
    except UNUSABLE as error:
        broken = failure or Failure("exception", f"{NO_RECORD}: {error}")
    try:
        return _record(plan, replace(parts, result=RankResult()), started, ended, broken, list(checks))
    except UNUSABLE:
        return _record(plan, Parts(), started, ended, broken, list(checks))


def _failure_of(result: RankResult) -> Failure:
    told = result.failure
    return told if told is not None and told.message else Failure("exception", "the rank left no result and no reason")


def make_failure(kind: str, message: str) -> dict[str, str]:
    return {"kind": kind, "message": message}


def _record(
    plan: Plan,
    parts: Parts,
    started: str,
    ended: str,
    failure: Failure | None,
    checks: list[Check],
    energy: Energy | None = None,
) -> dict[str, Any]:
    status = "ok" if failure is None else "interrupted" if failure.kind == "interrupted" else "failed"
    record = new_record(plan, status=status, started=started, ended=ended)
    record["failure"] = encode(failure)
    for name in RESULT_FIELDS:
        if (own := getattr(parts.result, name)) is not None:
            record[name] = encode(own)
    record["checks"] = [*record["checks"], *encode(checks)]
    if energy is not None:
        record["metrics"] = {**record["metrics"], **encode(energy.metrics)}
        record["energy"] = encode(energy.detail) if energy.detail is not None else {}
    record["stop"]["reason"] = parts.result.stop_reason
    record["unit"] = record["unit"] or parts.effective.unit
    effective = parts.effective_settings
    if effective:
        record["trial"]["effective"] = dict(effective)
        record["trial"]["effective_hash"] = settings_hash(plan.trial.workload, effective)
    record["facts"] = _facts(parts)
    if (stated := parts.facts.fingerprint) is not None:
        record["fingerprint"] = encode(Provenance(stated.machine, stated.software, stated.parts))
    files.to_json(record)  # a number that JSON cannot hold is found here, not while writing
    return validate_record(record)


def _facts(parts: Parts) -> JsonObject:
    """Facts of both writers; what the rank saw of torch is software and stands with it."""
    found = parts.facts
    torch = parts.device.torch if parts.device is not None else None
    if torch is not None or parts.result.imported is not None:
        seen = SoftwareFacts(torch=torch, imported=parts.result.imported)
        found = replace(found, software=overlaid(found.software or SoftwareFacts(), seen))
    rooms = {name: encode(room) for name in ROOMS_OF_FACTS if (room := getattr(found, name)) is not None}
    devices = [parts.device, *parts.others] if parts.device is not None else []
    return {**rooms, "devices": [encode(one.without_torch()) for one in devices if one is not None]}


# The manifest of a finished folder.


MANIFEST_VERSION = 1
MANIFEST_SCHEMA = f"prony.manifest/{MANIFEST_VERSION}"
WITH_MANIFEST = tuple(f"prony.record/{version}" for version in range(2, RECORD_VERSION + 1))
MOST_NAME_PARTS = 2  # parts of a name: a file, or a file in a folder (rank1/steps.csv)
CHUNK_BYTES = 2**20
LARGEST_BYTES = 8 * 2**30  # of a file; a sparse one has any size that its writer likes
# The supervisor's own output goes on until it ends, after the manifest.
NOT_LISTED = (files.MANIFEST, files.SUPERVISOR_LOG)
CHANGED = "{} was changed after the run"
SUPERVISOR, COLLECTION = "supervisor", "collection"  # who writes one


def write_manifest(folder: Path, written_by: str) -> bool:
    """List the files of a run folder that has its record; False where there is a manifest already."""
    files.fit_all(folder)
    listed = {
        found.name: {"sha256": _sha256(found), "bytes": found.status.st_size}
        for found in walk_run(folder)
        if _is_listed(found)
    }
    document = {"schema": MANIFEST_SCHEMA, "written_by": written_by, "files": listed}
    return files.write_once(folder / files.MANIFEST, document)


def has_manifest(folder: Path) -> bool:
    return os.path.lexists(folder / files.MANIFEST)


def lost_manifest(folder: Path) -> bool:
    """Whether this folder had a manifest: Prony writes one beside every record since version 2."""
    document = files.read_json(folder / files.RECORD)
    schema = document.get("schema") if isinstance(document, dict) else None
    return schema in WITH_MANIFEST


def manifest_problems(folder: Path) -> list[str]:
    """How the files of a folder differ from its manifest, one line each; none where they agree."""
    try:
        listed = _read_manifest(folder)
    except RequestError as error:
        return [str(error)]
    missing, added, links, changed = dict.fromkeys(listed), [], [], []
    try:
        for found in walk_run(folder):
            if stat.S_ISLNK(found.status.st_mode):  # to what no sum covers
                links.append(f"{found.name} is a link: it is in no manifest")
            elif _is_listed(found) and found.name not in listed:
                added.append(f"{found.name} is not in the manifest")
            elif _is_listed(found):
                del missing[found.name]
                changed += _changes(found, listed[found.name])
    except OSError as error:
        return [f"the folder cannot be read: {error.strerror}"]
    return [*(f"{name} is missing" for name in missing), *added, *links, *changed]


def _changes(found: RunEntry, listed: dict[str, Any]) -> list[str]:
    try:
        same = found.status.st_size == listed["bytes"] and _sha256(found) == listed["sha256"]
    except OSError as error:
        return [f"{found.name} cannot be read: {error.strerror}"]
    return [] if same else [CHANGED.format(found.name)]


def _read_manifest(folder: Path) -> dict[str, dict[str, Any]]:
    try:
        document = files.read_json(folder / files.MANIFEST)
    except OSError as error:
        raise RequestError(f"{files.MANIFEST} cannot be read: {error.strerror}") from None
    if document is None:
        raise RequestError(f"{files.MANIFEST} cannot be read")
    check_schema(document, "prony.manifest", MANIFEST_VERSION)
    listed = document.get("files")
    whole = isinstance(listed, dict) and all(
        isinstance(entry, dict) and {"sha256", "bytes"} <= set(entry) for entry in listed.values()
    )
    if not whole or files.RECORD not in listed:
        raise RequestError(f"{files.MANIFEST} does not list {files.RECORD} with its sum and size")
    return dict(listed)


def _is_listed(found: RunEntry) -> bool:
    """Whether it is a plain file that an archive of the folder holds, and not one that is being written."""
    parts = found.name.split("/")
    passing = len(parts) > MOST_NAME_PARTS or any(part.startswith(".") or part.endswith(".lock") for part in parts)
    return not passing and found.name not in NOT_LISTED and stat.S_ISREG(found.status.st_mode)


def _sha256(found: RunEntry) -> str:
    digest = hashlib.sha256()
    with os.fdopen(open_plain(found.name, folder=found.folder), "rb") as file:
        if os.fstat(file.fileno()).st_size > LARGEST_BYTES:
            raise NotPlain(found.name, f"it is longer than {LARGEST_BYTES / 2**30:,.0f} GiB")
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


# What verification found, and the mark that an index keeps of it.


Outcome = Literal["verified", "not verified", "unverified"]
NO_MANIFEST = "it has no manifest: it was made before there were any"
LOST_MANIFEST = "manifest.json is missing: it was removed, or the supervisor was killed before it wrote it"
# In an index: verified and recomputed, the manifest alone agrees, something does not, nothing to check against.
YES, MANIFEST_ALONE, NO, UNVERIFIED = "yes", "manifest", "no", "unverified"
UNCHANGED = "unchanged"  # the check that a record fails which does not verify; unknown where nothing shows it
CHANGED_AFTER = "changed after the run: `{}` says where"
MARKS = {"verified": YES, "not verified": NO, "unverified": UNVERIFIED}


@dataclass(frozen=True)
class Verification:
    """The verdict on one run folder."""

    folder: str
    id: str | None
    outcome: Outcome
    problems: tuple[str, ...] = ()  # what does not agree, or why there was nothing to check
    recomputed: tuple[str, ...] = ()  # metrics that were computed again from the files, and agree or not
    not_recomputed: tuple[str, ...] = ()  # metrics that the files cannot give again: those are only in the manifest
    notes: tuple[str, ...] = ()  # why something was not recomputed

    @property
    def mark(self) -> str:
        return MARKS[self.outcome]


def marked(record: dict[str, Any], mark: str, folder: Path) -> dict[str, Any]:
    """The record; with a check, which whatever shows or ranks a run looks at, where it does not verify."""
    if mark == NO:
        message = CHANGED_AFTER.format(verify_command(folder))
        return {**record, "checks": [*record["checks"], {"name": UNCHANGED, "level": "fail", "message": message}]}
    if mark == UNVERIFIED and record["status"] == "ok":
        check = {"name": UNCHANGED, "level": "unknown", "message": "there is no manifest to check the record against"}
        return {**record, "checks": [*record["checks"], check]}
    return record


def is_unverified(record: Record) -> bool:
    """Whether nothing shows that a record is as its run left it: it may have been edited, so it is never the best."""
    return any(check.name == UNCHANGED and check.level == "unknown" for check in record.checks)


def manifest_mark(folder: Path) -> str:
    """The mark of a folder by its manifest alone, which costs no more than reading its files."""
    if not has_manifest(folder):
        return NO if lost_manifest(folder) else UNVERIFIED
    return NO if manifest_problems(folder) else MANIFEST_ALONE


def verify_command(folder: Path) -> str:
    """The command that verifies a run folder, or all runs of a root, wherever it is run."""
    return f"prony verify {shlex.quote(str(folder.absolute()))}"


PACKAGE = "prony_node"


@functools.cache
def node_source_hash() -> str:
    """A short hash of every .py file of the package as it was imported: names and contents, no times, no paths."""
    whole = hashlib.sha256()
    for name, content in sorted(_sources(resources.files(PACKAGE), "")):
        whole.update(f"{name}\0{hashlib.sha256(content).hexdigest()}\n".encode())
    return whole.hexdigest()[:16]


def _sources(folder: Traversable, prefix: str) -> Iterator[tuple[str, bytes]]:
    for entry in folder.iterdir():
        if entry.name.startswith("."):
            continue  # of an editor, which may be a link to nothing
        if entry.name.endswith(".py"):
            yield prefix + entry.name, entry.read_bytes()
        elif "." not in entry.name and entry.name != "__pycache__" and entry.is_dir():
            yield from _sources(entry, f"{prefix}{entry.name}/")
