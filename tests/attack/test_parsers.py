"""Every parser answers any text with a value or with its own error: never a traceback, never a hang."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import re
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from prony.analysis.compare import _hours_apart
from prony.catalog import __file__ as catalog
from prony.cli.compare import parse_share
from prony.engine.history import seen_of
from prony.report import series
from prony.report.series import read_series
from prony.sites import image, kubernetes_answers, locks, site_check
from prony.sites.collect import ProgressTail, collect
from prony.sites.image import Unknown, registry_architectures
from prony.sites.job import BlockRun, new_job
from prony.sites.job import load as load_job
from prony.sites.kubernetes_api import Api, ApiProblem, _problem, read_changes
from prony.sites.node import NodeTalk, ask_node
from prony.sites.protocol import Caller, Shared
from prony.sites.site import Partition, find_site, parse_site, read_section
from prony.sites.slurm import fill_in, id_of_name, job_id, parse_gres, parse_sacct, parse_squeue, parse_time
from prony.store import Store, anchors, tabular
from prony.store.anchors import Anchor
from prony.store.index import index_place
from prony.store.query import parse_number
from prony.store.rows import RunSummary, _document, read_row
from prony.store.transfer import take_records
from prony.study.request import parse_joules, parse_seconds, parse_tolerance, parse_trial
from prony.study.search_space import parse_limits
from prony.study.space import split_values
from prony.study.study import parse_counts, parse_suite
from prony_node.contract import Plan, Trial, cache, files, run_folder
from prony_node.contract.errors import RequestError
from prony_node.contract.machine import identify, is_alive
from prony_node.contract.metrics import parse_rate
from prony_node.contract.record import _moment, parse_record
from prony_node.contract.settings import SETTINGS, parse_target
from prony_node.contract.typed import encode
from prony_node.data import dataset as data_manifest
from prony_node.data import source
from prony_node.facts.tree import parse_keys
from prony_node.parallel.place import wanted_cores
from prony_node.power.any_command import parse_interval, parse_readers
from prony_node.run.claim import load_plan
from prony_node.run.watchdog import last_progress
from prony_node.workloads import find_workload
from prony_node.workloads.collective_config import SMALLEST, parse_size
from prony_node.workloads.language_libraries import read_config
from prony_node.workloads.model_file_config import from_document, to_document

SOURCE = Path(__file__).parents[2] / "src"
CATALOG = Path(catalog).parent
RECORDS = sorted((Path(__file__).parents[1] / "replay" / "records").glob("*/record.json"))
SQUEUE = "1|RUNNING|None\n2_3|PENDING|Resources\n"
SACCT = "1|COMPLETED|0:0|00:01:02\n2|CANCELLED by 61234|0:15|10:00\n"
EVENT = json.dumps({"type": "MODIFIED", "object": {"metadata": {"name": "a", "resourceVersion": "12"}}}) + "\n"


@dataclass(frozen=True)
class Parser:
    """A parser, by its file and name, a text that it takes, and the errors that are its own."""

    name: str
    parse: Callable[[str], object]
    taken: str
    errors: tuple[type[Exception], ...] = (RequestError,)

    def __str__(self) -> str:
        return self.name


def of_bytes(parse: Callable[[bytes], object]) -> Callable[[str], object]:
    return lambda text: parse(text.encode(errors="surrogatepass"))


def of_file(
    name: str, read: Callable[[Path], object], beside: Mapping[str, str] | None = None, folder: str = "run"
) -> Callable[[str], object]:
    """Read a folder in which a file of this name holds the text, beside others."""

    def parse(text: str) -> object:
        with tempfile.TemporaryDirectory() as place:
            path = Path(place, "runs", folder, name)
            path.parent.mkdir(parents=True)
            for other, content in (beside or {}).items():
                (path.parent / other).write_text(content, encoding="utf-8")
            path.write_bytes(text.encode(errors="surrogatepass"))
            return read(path.parent)

    return parse


def of_document(parse: Callable[[Any], object]) -> Callable[[str], object]:
    """Parse what JSON the text is; text that is none is the business of who reads the file."""

    def parse_text(text: str) -> object:
        try:
            document = json.loads(text)
        except (ValueError, RecursionError):
            return None
        return parse(document)

    return parse_text


def kept_answer(text: str) -> object:
    shared = Shared(Path("none"), 60.0, Caller(run=lambda *_: "", clock=lambda: 1.0))
    shared._own = text
    return shared._fresh(is_shared=False)


def asked_of_a_registry(text: str) -> object:
    with mock.patch("urllib.request.urlopen", return_value=io.BytesIO(text.encode(errors="surrogatepass"))):
        return registry_architectures("example.org/a/b:c", Unknown)


def asked_of_kubernetes(text: str) -> object:
    api = object.__new__(Api)
    with mock.patch.object(Api, "_stream", return_value=[text.encode(errors="surrogatepass")]):
        return api._json("GET", "/")


def told_by_a_node(text: str) -> object:
    return list(NodeTalk(mock.Mock(), io.StringIO(text), io.StringIO(), io.StringIO()).lines())


def a_run(ended: str) -> RunSummary:
    values: dict[str, Any] = dict.fromkeys(RunSummary.__dataclass_fields__)
    return RunSummary(
        **{**values, "folder": Path("none"), "settings": {}, "started": "2026-01-01T00:00:00", "ended": ended}
    )


JOB_ID = "prony-20260101T000000-abcdef"


def a_job() -> str:
    site = find_site("local")
    job = new_job(site, next(iter(site.partitions.values())), Path("runs"), [BlockRun(PLAN)], time_s=60.0)
    return json.dumps({**encode(job.document()), "id": JOB_ID})


RECORD = RECORDS[0].read_text(encoding="utf-8")
REPLAYED = parse_record(json.loads(RECORD))
PLAN = Plan("gpt-tiny-1", Trial("gpt-tiny", {}))
GONE = {"role": "supervisor", **identify(), "start_ticks": 1}  # another process has its number now
LEFT = {files.PLAN: json.dumps(PLAN.to_json()), files.SUPERVISOR: json.dumps(GONE), files.RESULT: "{}",
        files.FACTS: "{}", files.DEVICE: "{}", files.EFFECTIVE: '{"settings": {}}'}  # fmt: skip
HOLDER = json.dumps({"role": "supervisor", **identify()})
SERIES = "steps,end_s,duration_s\n1,0.5,0.5\n2,1.5,1.0\n3,3.0,1.5\n"
POWER = json.dumps({"sensors": [{"id": "a", "kind": "power", "scope": "gpu", "part": "", "period_s": 0.1}]})
SAMPLES = "sensor,before_s,after_s,value\n0,0.1,0.2,50.0\n0,0.2,0.3,51.0\n"
LISTED = json.dumps([0, [["a.bin", 12, "0a"]]]) + "\n" + json.dumps([1, [["b.bin", 12, "0b"]]]) + "\n"
STAGED = json.dumps(["a.bin", 12, 0, 0, "0a"]) + "\n"
A_POD = json.dumps({"metadata": {"name": "a", "creationTimestamp": "2026-01-01T00:00:00Z", "labels": {"a": "b"}},
                  "status": {"phase": "Pending", "containerStatuses": [{"state": {"waiting": {"reason": "x"}}}],
                             "conditions": [{"type": "PodScheduled", "status": "False", "message": "m"}]},
                  "spec": {"nodeName": "n"}})  # fmt: skip
IMAGES = json.dumps({"manifests": [{"platform": {"architecture": "amd64"}}]})
ANCHORS = json.dumps({"schema": anchors.SCHEMA, "anchors": [asdict(Anchor("Doe 2026", "csv", "throughput", 1.0))]})
MANIFEST_OF_RUN = json.dumps({"schema": "prony.manifest/1", "files": {"record.json": {"sha256": "0", "bytes": 1}}})
PARSERS = (
    Parser("prony/cli/compare.py parse_share", parse_share, "3%"),
    Parser("prony/sites/protocol.py Shared._fresh", kept_answer, '{"at_s": 0.0, "answer": "x"}', ()),
    *(
        Parser("prony/sites/collect.py collect", of_file(name, collect, {**LEFT, name: ""}), LEFT[name])
        for name in LEFT
    ),
    Parser("prony/sites/collect.py _parse", of_file("progress.jsonl", lambda folder: ProgressTail(folder).read()),
           '{"phase": "measure", "steps": 3}\n', ()),
    Parser("prony/sites/image.py _of_index", of_bytes(image._of_index), IMAGES, ()),
    Parser("prony/sites/image.py _of_inspection", of_bytes(image._of_inspection), '[{"Architecture": "arm64"}]', ()),
    Parser("prony/sites/job.py _read", of_file("job.json", load_job, folder=JOB_ID), a_job()),
    Parser("prony/sites/kubernetes_api.py Api._json", asked_of_kubernetes, A_POD, (ApiProblem,)),
    Parser("prony/sites/kubernetes_api.py read_changes", of_bytes(lambda text: read_changes(text, "1")), EVENT, ()),
    Parser("prony/sites/kubernetes_api.py _problem", of_bytes(lambda text: _problem(500, {}, text)),
           '{"message": "x"}', ()),
    Parser("prony/sites/kubernetes_answers.py _seconds", kubernetes_answers._seconds, "2026-01-01T00:00:00Z", ()),
    Parser("prony/sites/locks.py _holders", of_file("a.lock", lambda folder: list(locks._holders(folder))),
           json.dumps({"what": "a sweep", **identify()}), ()),
    Parser("prony/sites/image.py _read", asked_of_a_registry, IMAGES, (Unknown,)),
    Parser("prony/sites/site.py read_section", lambda text: read_section(text, "s.yaml", "a site"),
           "name: a\nnodes: {cpu: 1}\n"),
    Parser("prony/sites/site_check.py read_answer", of_file("answer", site_check.read_answer),
           'words\n{\n"a": 1}\n', ()),
    Parser("prony/sites/site.py parse_site", lambda text: parse_site(text, "s.yaml", "s"),
           (CATALOG / "sites/jureca.yaml").read_text()),
    Parser("prony/sites/site.py parse_site", lambda text: parse_site(text, "s.yaml", "s"),
           (CATALOG / "sites/nrp.yaml").read_text()),
    Parser("prony/sites/slurm.py parse_squeue", parse_squeue, SQUEUE, ()),
    Parser("prony/sites/slurm.py parse_sacct", parse_sacct, SACCT, ()),
    Parser("prony/sites/slurm.py parse_gres", lambda text: parse_gres(text.splitlines()),
           "gpu:h100:4(S:0-3)\ngpu:2", ()),
    Parser("prony/sites/slurm.py job_id", job_id, "1234;cluster\n", ()),
    Parser("prony/sites/slurm.py id_of_name", lambda text: id_of_name(text, "a"), "1|RUNNING|None|a\n", ()),
    Parser("prony/sites/slurm.py parse_time", parse_time, "1-02:03:04", ()),
    Parser("prony/sites/slurm.py fill_in",
           lambda text: fill_in(Partition("a"), lambda _: None, Caller(run=lambda *_: text)),
           "1-00:00:00|gpu:h100:4|n[1-4]\n"),
    Parser("prony/sites/node.py NodeTalk.lines", told_by_a_node, '{"phase": 1}\n', ()),
    Parser("prony/study/request.py parse_seconds", parse_seconds, "2.5h"),
    Parser("prony/study/request.py parse_joules", parse_joules, "1.5kWh"),
    Parser("prony/study/request.py parse_tolerance", parse_tolerance, "0.5%"),
    Parser("prony/study/request.py parse_trial", lambda text: parse_trial("gpt-tiny", text.split(" ")),
           "batch_size=4 precision=bf16 seed=1"),
    Parser("prony/study/study.py parse_counts", lambda text: parse_counts(text, "--devices"), "1,2,4"),
    Parser("prony/study/search_space.py parse_limits", lambda text: parse_limits([text]), "memory<40GiB"),
    Parser("prony/study/study.py parse_suite", lambda text: parse_suite(text, "s.yaml"),
           (CATALOG / "suites/quick.yaml").read_text()),
    Parser("prony/study/space.py split_values", lambda text: split_values(SETTINGS["batch_size"], text), "16..64,3"),
    Parser("prony/report/series.py _read", of_file("power.csv", series._read, {files.POWER: POWER}),
           SAMPLES, ()),
    Parser("prony/report/series.py _read", of_file("power.json", series._read), POWER, ()),
    Parser("prony/report/series.py _read_blocks", of_file("steps.csv", lambda folder: read_series(folder, REPLAYED)),
           SERIES, ()),
    Parser("prony/store/anchors.py read_anchors",
           of_file("a.json", lambda folder: anchors.read_anchors(folder.parent), folder="anchors"), ANCHORS, ()),
    Parser("prony/store/query.py parse_number", parse_number, "1.5e3", ()),
    Parser("prony/store/rows.py _document", _document, '{"batch_size": 4}'),
    Parser("prony/analysis/compare.py _hours_apart",
           lambda text: _hours_apart(text, "2026-01-01T00:00:00+00:00"), "2026-01-01", ()),
    Parser("prony/engine/history.py seen_of", lambda text: seen_of(a_run(text)), "2026-01-01T00:00:00+00:00", ()),
    Parser("prony/store/rows.py _read_record", of_file("record.json", read_row), RECORD),
    Parser("prony/store/tabular.py read_csv", of_file("a.csv", lambda folder: list(tabular.read_csv(folder / "a.csv"))),
           'record,id\n"{""id"": 1}",1\n'),
    Parser("prony/store/transfer.py take_records",
           of_file("x", lambda folder: take_records((folder / "x").read_text("utf-8", "replace").split("\n"),
                                                    folder / "to", "x")), RECORD),
    Parser("prony_node/contract/metrics.py parse_rate", lambda text: parse_rate(text, "price"), "0.31EUR"),
    Parser("prony_node/contract/files.py _read_json",
           of_file("a.json", lambda folder: files.read_json(folder / "a.json")), HOLDER, ()),
    Parser("prony_node/contract/cache.py _is_left_open",
           of_file("supervisor.json", lambda folder: cache._is_left(folder.parent, "run", "supervisor.json")),
           HOLDER, (OSError,)),
    Parser("prony_node/contract/run_folder.py _read_manifest", of_file("manifest.json", run_folder._read_manifest),
           MANIFEST_OF_RUN),
    Parser("prony_node/contract/settings.py parse_target", lambda text: parse_target(text, ("accuracy", "loss")),
           "accuracy>=0.76"),
    Parser("prony_node/contract/record.py _moment", _moment, "2026-01-01T00:00:00+00:00", ()),
    Parser("prony_node/contract/machine.py is_alive", of_document(is_alive), HOLDER, ()),
    Parser("prony_node/data/dataset.py read_manifest", of_file("manifest.json", data_manifest.read_manifest),
           '{"files": 3, "list_sha256": "0"}', ()),
    Parser("prony_node/data/dataset.py _lines",
           of_file("list", lambda folder: list(data_manifest._lines(folder / "list"))), LISTED, ()),
    Parser("prony_node/data/source.py _listed", of_file(source.LIST, source._listed), STAGED, ()),
    Parser("prony_node/facts/tree.py parse_keys", parse_keys, "MemTotal: 12 kB\nSwap:", ()),
    Parser("prony_node/parallel/place.py wanted_cores",
           lambda text: wanted_cores(str(SETTINGS["cores"].parse(text)), list(range(16))), "0-3,8"),
    Parser("prony_node/power/any_command.py parse_interval", parse_interval, "100ms"),
    Parser("prony_node/power/any_command.py parse_readers", parse_readers, "nvidia,rapl"),
    Parser("prony_node/run/claim.py load_plan",
           of_file("plan.json", lambda folder: load_plan(folder / "plan.json")),
           json.dumps(PLAN.to_json())),
    Parser("prony_node/run/watchdog.py last_progress", of_file("progress.jsonl", last_progress),
           '{"phase": "measure", "steps": 3}\n', ()),
    Parser("prony_node/workloads/collective_config.py parse_size",
           lambda text: parse_size(SMALLEST.parse(text)), "1MiB"),
    Parser("prony_node/workloads/language_libraries.py read_config",
           of_file("config.json", lambda folder: read_config(str(folder))), '{"model_type": "gpt2"}'),
    Parser("prony_node/workloads/model_file_config.py from_document", of_document(from_document),
           json.dumps(to_document(replace(find_workload("gpt-tiny"), kernels=())))),
)  # fmt: skip
# Parsers that are fuzzed by a test of their own.
ELSEWHERE: dict[str, dict[str, tuple[str, ...]]] = {
    "test_study_study_file.py": {
        "prony/study/study_file.py": ("parse_study",),
        "prony/document.py": ("read_document",),
        "prony/study/study_tables.py": ("read_tables", "read_plots"),
    },
    "test_foreign_texts.py": {
        "prony_node/workloads/weights.py": ("read_weights", "_check_stored"),
        "prony_node/data/texts.py": ("load_tokenizer",),
    },
    "test_study_expression.py": {"prony/study/space.py": ("parse_expression",)},
    "test_store_filter.py": {"prony/store/query.py": ("parse_filter",)},
    "test_store_archive.py": {"prony/store/archive.py": ("unpacked",)},
    "test_store_foreign.py": {
        "prony/store/foreign/__init__.py": ("read_foreign", "read_document"),
        "prony/store/foreign/csv_table.py": ("parse", "split_rows"),
        "prony/store/foreign/jube.py": ("parse",),
        "prony/store/foreign/milabench.py": ("parse",),
        "prony/store/foreign/mlperf.py": ("parse", "_events"),
        "prony/store/foreign/optimum.py": ("parse",),
    },
    "test_contract_settings.py": {"prony_node/contract/settings.py": ("Setting.parse", "parse_settings")},
    "test_contract_frames.py": {"prony_node/contract/files.py": ("decode",)},
    "test_contract_plan.py": {
        "prony_node/contract/trial.py": ("Plan.from_json", "Trial.from_json"),
    },
    "test_contract_assemble.py": {
        "prony_node/contract/run_folder.py": ("parse_parts", "parse_result", "parse_device", "parse_failure"),
    },
    "test_contract_record.py": {
        "prony_node/contract/record.py": ("_parsed",),
        "prony_node/contract/typed.py": ("decode",),
    },
    "test_facts_fuzz.py": {
        "prony_node/contract/machine.py": ("parse_cpu_list",),
        "prony_node/facts/device.py": ("parse_levels",),
        "prony_node/facts/host.py": ("parse_membership", "parse_mounts", "parse_cpuinfo", "parse_meminfo"),
        "prony_node/facts/watch.py": ("parse_stat",),
        "prony_node/facts/software.py": ("parse_nvidia_version",),
    },
    "test_data_fuzz.py": {
        "prony_node/data/labelled_images.py": ("parse_binary", "parse_labels", "parse_pickle", "parse_idx"),
        "prony_node/data/detection.py": ("parse_instances",),
        "prony_node/data/texts.py": ("parse_text", "parse_note", "parse_squad"),
    },
    "test_reader_fuzz.py": {
        "prony_node/power/readers/ipmi.py": ("parse_reading",),
        "prony_node/power/readers/redfish.py": ("parse", "parse_members", "parse_power"),
        "prony_node/power/readers/slurm.py": ("parse_config", "parse_node_json", "parse_node_text"),
    },
    "test_library_fuzz.py": {"prony_node/power/readers/apple.py": ("package_power_w",)},
    "test_recording.py": {"prony_node/power/recording.py": ("sensor_from_json",)},
}
OWN_JOB = "the job is this user's own: `refuse_barred` has held back every other"
NOT_FUZZED = {
    "prony/cli/options.py JobOptions.parse": "hands its time to parse_seconds",
    "prony/catalog/__init__.py devices": "a file of Prony's own",
    "prony/catalog/__init__.py figures": "files of Prony's own",
    "prony/sites/jobs.py Jobs._learn": OWN_JOB,
    "prony/sites/kubernetes.py _was_missed": OWN_JOB,
    "prony/sites/local.py _identity": OWN_JOB,
    "prony/sites/slurm.py _submitted_s": OWN_JOB,
    "prony/sites/kubernetes.py _ended_s": "read_pod has made what it reads",
    "prony/sites/node.py node_zip": "writes a zip file",
    "prony_node/data/texts.py _encoded": "reads back the tokenizer that load_tokenizer has made",
    "prony_node/data/texts.py map_tokens": "maps bytes as numbers; every byte is one",
    "prony/sites/node.py ask_node": "below, with a process each",
    "prony/sites/site.py _parse": "a part of parse_site",
    "prony/sites/site.py _parsed": "a part of parse_site",
    "prony/sites/node.py _ask": "the output of a Prony process that runs no foreign code",
    "prony/study/search_space.py _parse_limit": "a part of parse_limits",
    "prony/study/study.py _parse_trial": "a part of parse_suite",
    "prony_node/run/claim.py _read_stdin": "from the controller that started the process",
    "prony_node/run/energy.py Work.__init__": "verify_folder answers whatever it raises",
    "prony_node/run/verify.py Recomputation._energy": "verify_folder answers whatever it raises",
    "prony_node/run/verify.py read_series": "verify_folder answers whatever it raises",
    "prony_node/workloads/config.py Workload.parse": "hands each value to Setting.parse",
    "prony_node/workloads/dino_model.py Dino.decode": "of tensors",
    "prony_node/workloads/language.py CachedGPT.decode": "of tensors",
    "prony_node/workloads/segment.py decode": "of tensors",
    "prony_node/workloads/model_file_config.py to_document": "reads what it has just written",
}
DEEP = ["[" * 2000 + "\n", '{"a":' * 3000 + "\n", '{\n"a":' * 3000 + "\n"]  # nested beyond what a parser follows
LONGEST_S = 5.0  # of processor time; a text has some ten thousand characters at most
PIECES = ["\x00", "\x1b[2J", "\ud800", "٣", "-", "1e999", "nan", "9" * 400, ":", "{", "[", "&a *a", "!!python/x",
          "\n", "\r", "\t", "=", "|", "%", "1..1000000000000", "\u202e", '"', "'", ",", "..", "/", "null"]  # fmt: skip


def damaged(text: str) -> st.SearchStrategy[str]:
    """The text with some of it changed, cut or inserted; now and then any text at all."""

    @st.composite
    def draw(choose: st.DrawFn) -> str:
        found = text
        for _ in range(choose(st.integers(1, 5))):
            at, length = choose(st.integers(0, len(found))), choose(st.integers(0, 12))
            more = choose(st.one_of(st.just(""), st.sampled_from(PIECES), st.text(max_size=6)))
            found = found[:at] + more + found[at + length :]
        return found

    return st.one_of(draw(), st.text(max_size=80))


@pytest.mark.parametrize("parser", PARSERS, ids=str)
def test_any_text_is_a_value_or_an_error_of_the_parsers_own(parser: Parser) -> None:
    parser.parse(parser.taken)

    @settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(st.one_of(damaged(parser.taken), exchanged(parser.taken)))
    @example(DEEP[0])
    @example(DEEP[1])
    @example(DEEP[2])
    def check(text: str) -> None:
        before_s = time.process_time()
        with contextlib.suppress(*parser.errors):
            parser.parse(text)
        assert time.process_time() - before_s < LONGEST_S

    check()


LEAVES = st.one_of(st.none(), st.booleans(), st.integers(), st.just(10**400), st.floats(), st.text(max_size=8),
                   st.builds(list), st.builds(dict), st.just("=cmd|' /C calc'!A0"),
                   st.builds(lambda: [{"parts": "x"}]))  # fmt: skip


def exchanged(text: str) -> st.SearchStrategy[str]:
    """Where the text is JSON: with something else in some places of it, and JSON still."""
    if not text.startswith(("{", "[")):
        return damaged(text)

    @st.composite
    def draw(choose: st.DrawFn) -> str:
        try:
            documents = [json.loads(text)]
        except ValueError:
            documents = [json.loads(line) for line in text.splitlines()]
        for document in documents:
            for _ in range(choose(st.integers(1, 4))):
                replace_somewhere(document, choose)
        return "".join(f"{json.dumps(document)}\n" for document in documents)

    return draw()


@pytest.mark.parametrize("path", RECORDS[:: max(1, len(RECORDS) // 6)], ids=lambda path: path.parent.name)
def test_a_record_with_anything_anywhere_is_read_or_refused(path: Path) -> None:
    whole = path.read_text(encoding="utf-8")

    @settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(st.data())
    def check(data: st.DataObject) -> None:
        document = json.loads(whole)
        for _ in range(data.draw(st.integers(1, 4))):
            replace_somewhere(document, data.draw)
        with contextlib.suppress(RequestError):
            parse_record(document)

    check()


def replace_somewhere(document: Any, choose: Any) -> None:
    """Walk down by chance and put something else there."""
    while isinstance(document, (dict, list)) and document:
        keys = list(document) if isinstance(document, dict) else list(range(len(document)))
        key = choose(st.sampled_from(keys))
        if not isinstance(document[key], (dict, list)) or not document[key] or choose(st.booleans()):
            document[key] = choose(LEAVES)
            return
        document = document[key]


def test_a_job_with_a_number_beyond_all_others_is_refused() -> None:
    """Any user can leave one in a root that several write to, and `prony jobs` reads all of them."""
    with pytest.raises(RequestError, match="is not a complete job"):
        of_file("job.json", load_job)(json.dumps({**json.loads(a_job()), "time_s": 10**400}))


def test_an_answer_of_many_beginnings_is_read_in_time() -> None:
    """Each was tried on a copy of all that follows: a log of a few MB took hours."""
    before_s = time.process_time()
    assert of_file("answer", site_check.read_answer)("{\n" * 500_000) is None
    assert time.process_time() - before_s < LONGEST_S


@pytest.mark.parametrize("said", ["", "[]", "3", "nan", "[" * 3000, "{" * 3000, "\\0", "\\377"])
def test_a_node_that_answers_anything_is_an_answer_or_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    """A model file may write to the standard output of the process that answers for it."""
    node = tmp_path / "node"
    node.write_text(f"#!/bin/sh\nprintf '{said}'\n")
    node.chmod(0o755)
    monkeypatch.setenv("PRONY_PYTHON", str(node))
    with pytest.raises(RequestError, match="gave no answer"):
        ask_node("devices")


def test_an_edited_row_of_the_index_is_a_sentence(tmp_path: Path) -> None:
    """The index of another's root is theirs."""
    root = tmp_path / "runs"
    shutil.copytree(RECORDS[0].parent, root / RECORDS[0].parent.name)
    Store(root).refresh()
    place = index_place(root)
    assert place is not None
    with contextlib.closing(sqlite3.connect(place)) as connection, connection:
        connection.execute("UPDATE run_detail SET settings = '[[['")
    with pytest.raises(RequestError, match="prony store rebuild"):
        Store(root).runs()
    Store(root).rebuild()
    assert len(Store(root).runs()) == 1


# What a function that parses is called, or calls. Documents that `read_json` returns are any JSON: functions that look
# into those are found by the odd folders of test_odd_files.py and the edited records of test_records.py.
NAMED = re.compile(r"_?parsed?(_\w+)?|\w*from_json|from_document|decode|read_tables|read_plots")
CALLED = {
    "loads", "raw_decode", "safe_load", "compose", "compose_all", "reader", "DictReader", "fromisoformat", "from_str",
    "from_file", "load_file", "ZipFile",
}  # fmt: skip


def functions(node: ast.AST, inside: str = "") -> Iterator[tuple[str, ast.FunctionDef]]:
    """Every function of a file, with the names of what it is in."""
    for child in ast.iter_child_nodes(node):
        name = f"{inside}{child.name}" if isinstance(child, ast.FunctionDef | ast.ClassDef) else ""
        if isinstance(child, ast.FunctionDef):
            yield name, child
        yield from functions(child, f"{name}." if name else inside)


def parses(name: str, function: ast.FunctionDef) -> bool:
    called = {
        call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        for call in ast.walk(function)
        if isinstance(call, ast.Call)
    }
    return bool(NAMED.fullmatch(name.rpartition(".")[2]) or called & CALLED)


def test_no_parser_is_left_out() -> None:
    """A function that parses is fuzzed here, or in the file that is named for it, or there is a reason why not."""
    every = {
        f"{path.relative_to(SOURCE).as_posix()} {name}": function
        for path in SOURCE.rglob("*.py")
        for name, function in functions(ast.parse(path.read_text(encoding="utf-8")))
    }
    here = {parser.name for parser in PARSERS} | {"prony_node/contract/record.py parse_record"}
    elsewhere = {f"{path} {name}" for tested in ELSEWHERE.values() for path, names in tested.items() for name in names}
    known = here | elsewhere | set(NOT_FUZZED)
    assert known - set(every) == set(), "these are no more"
    assert {name for name, function in every.items() if parses(name.partition(" ")[2], function)} - known == set()
    for file, tested in ELSEWHERE.items():
        (place,) = Path(__file__).parents[1].rglob(file)
        text = place.read_text(encoding="utf-8")
        assert re.search(r"^@given\(", text, re.MULTILINE), f"{file} draws nothing"
        modules = {path.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for path in tested}
        imported = set(re.findall(r"^from (\S+) import|^import (\S+)", text, re.MULTILINE))
        packages = {name for names in imported for name in names}
        assert {one for module in modules for one in (module, module.rpartition(".")[0])} & packages, file


def test_digits_are_told_in_one_place() -> None:
    """`"²".isdigit()` holds, and int("²") fails."""
    found = [
        f"{path.relative_to(SOURCE)}: {line.strip()}"
        for path in SOURCE.rglob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if ".isdigit()" in line and ".isascii()" not in line
    ]
    assert found == [], "use prony_node.contract.errors.is_digits"
