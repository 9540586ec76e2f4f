"""Every parser answers any text with a value or with its own error: never a traceback, never a hang."""

from __future__ import annotations

import ast
import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prony.catalog import __file__ as catalog
from prony.cli.compare import parse_share
from prony.launch.kubernetes_api import read_changes
from prony.launch.section import read_section
from prony.launch.site_file import parse_site
from prony.launch.slurm_answers import parse_gres, parse_sacct, parse_squeue
from prony.launch.slurm_detect import parse_time
from prony.plan.request import parse_joules, parse_seconds, parse_tolerance, parse_trial
from prony.plan.scale import parse_counts
from prony.plan.search_goal import parse_limits
from prony.plan.suites import parse_suite
from prony.store.filter import parse_number
from prony_node.contract.cost import parse_rate
from prony_node.contract.errors import RequestError
from prony_node.contract.quality import parse_target
from prony_node.contract.record import parse_record
from prony_node.facts.tree import parse_keys
from prony_node.power.options import parse_interval, parse_readers

SOURCE = Path(__file__).parents[2] / "src"
CATALOG = Path(catalog).parent
RECORDS = sorted((Path(__file__).parents[1] / "replay" / "records").glob("*/record.json"))
SQUEUE = "1|RUNNING|None\n2_3|PENDING|Resources\n"
SACCT = "1|COMPLETED|0:0|00:01:02\n2|CANCELLED by 61234|0:15|10:00\n"
EVENT = json.dumps({"type": "MODIFIED", "object": {"metadata": {"name": "a", "resourceVersion": "12"}}}) + "\n"


@dataclass(frozen=True)
class Parser:
    """A parser of one text, a text that it takes, and the errors that are its own."""

    name: str
    parse: Callable[[str], object]
    taken: str
    errors: tuple[type[Exception], ...] = (RequestError,)

    def __str__(self) -> str:
        return self.name


PARSERS = (
    Parser("parse_share", parse_share, "3%"),
    Parser("parse_site", lambda text: parse_site(text, "s.yaml", "s"), (CATALOG / "sites/jureca.yaml").read_text()),
    Parser("parse_site", lambda text: parse_site(text, "s.yaml", "s"), (CATALOG / "sites/nrp.yaml").read_text()),
    Parser("parse_suite", lambda text: parse_suite(text, "s.yaml"), (CATALOG / "suites/quick.yaml").read_text()),
    Parser("read_section", lambda text: read_section(text, "s.yaml", "a site"), "name: a\nnodes: {cpu: 1}\n"),
    Parser("parse_squeue", parse_squeue, SQUEUE, ()),
    Parser("parse_sacct", parse_sacct, SACCT, ()),
    Parser("parse_gres", lambda text: parse_gres(text.splitlines()), "gpu:h100:4(S:0-3)\ngpu:2", ()),
    Parser("parse_time", parse_time, "1-02:03:04", ()),
    Parser("read_changes", lambda text: read_changes(text.encode(errors="surrogatepass"), "1"), EVENT, ()),
    Parser("parse_seconds", parse_seconds, "2.5h"),
    Parser("parse_joules", parse_joules, "1.5kWh"),
    Parser("parse_tolerance", parse_tolerance, "0.5%"),
    Parser("parse_trial", lambda text: parse_trial("gpt-tiny", text.split(" ")), "batch_size=4 precision=bf16 seed=1"),
    Parser("parse_counts", lambda text: parse_counts(text, "--devices"), "1,2,4"),
    Parser("parse_limits", lambda text: parse_limits([text]), "memory<40GiB"),
    Parser("parse_number", parse_number, "1.5e3", ()),
    Parser("parse_rate", lambda text: parse_rate(text, "price"), "0.31EUR"),
    Parser("parse_target", lambda text: parse_target(text, ("accuracy", "loss")), "accuracy>=0.76"),
    Parser("parse_keys", parse_keys, "MemTotal: 12 kB\nSwap:", ()),
    Parser("parse_interval", parse_interval, "100ms"),
    Parser("parse_readers", parse_readers, "nvidia,rapl"),
)
# Parsers that have their own fuzzing, by the test that does it.
ELSEWHERE = {
    "test_plan_study_file.py": ("parse_study", "read_document"),
    "test_plan_expression.py": ("parse_expression",),
    "test_store_filter.py": ("parse_filter",),
    "test_store_foreign.py": ("parse", "read_rows"),
    "test_contract_settings.py": ("parse_settings",),
    "test_contract_frames.py": ("decode",),
    "test_facts_fuzz.py": ("parse_cpuinfo", "parse_meminfo", "parse_cpu_list", "parse_mounts", "parse_membership",
                           "parse_levels", "parse_stat", "parse_nvidia_version"),
    "test_data_fuzz.py": ("parse_binary", "parse_pickle", "parse_labels", "parse_instances", "parse_idx", "parse_squad",
                          "parse_note"),
    "test_reader_fuzz.py": ("parse_reading", "parse_members", "parse_power", "parse_config", "parse_node_text",
                            "parse_node_json"),
}  # fmt: skip
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
    @given(damaged(parser.taken))
    def check(text: str) -> None:
        with contextlib.suppress(*parser.errors):
            parser.parse(text)

    check()


LEAVES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.builds(list),
                   st.builds(dict), st.just("=cmd|' /C calc'!A0"), st.builds(lambda: [{"parts": "x"}]))  # fmt: skip


@pytest.mark.parametrize("path", RECORDS[:: max(1, len(RECORDS) // 6)], ids=lambda path: path.parent.name)
def test_a_record_with_anything_anywhere_is_read_or_refused(path: Path) -> None:
    whole = path.read_text(encoding="utf-8")

    @settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(st.data())
    def check(data: st.DataObject) -> None:
        document = json.loads(whole)
        for _ in range(data.draw(st.integers(1, 4))):
            replace_somewhere(document, data)
        with contextlib.suppress(RequestError):
            parse_record(document)

    check()


def replace_somewhere(document: Any, data: st.DataObject) -> None:
    """Walk down by chance and put something else there."""
    while isinstance(document, (dict, list)) and document:
        keys = list(document) if isinstance(document, dict) else list(range(len(document)))
        key = data.draw(st.sampled_from(keys))
        if not isinstance(document[key], (dict, list)) or not document[key] or data.draw(st.booleans()):
            document[key] = data.draw(LEAVES)
            return
        document = document[key]


def test_no_parser_is_left_out() -> None:
    """A function that parses text is fuzzed here or in the file that is named for it."""
    known = {parser.name for parser in PARSERS} | {name for names in ELSEWHERE.values() for name in names}
    known |= {"parse_record", "parse_size"}  # below; of a setting that has a pattern
    found = {
        (path.relative_to(SOURCE).as_posix(), node.name)
        for path in SOURCE.rglob("*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("parse")
    }
    assert not {(path, name) for path, name in found if name not in known}
    for file, names in ELSEWHERE.items():
        (place,) = (Path(__file__).parents[1] / "unit").rglob(file)
        text = place.read_text(encoding="utf-8")
        for name in names:
            assert name in text or name in ("parse", "read_rows", "read_document", "decode"), f"{file} has no {name}"
