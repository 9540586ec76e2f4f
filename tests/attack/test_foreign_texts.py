"""Texts of others in a report, a CSV file, a checkpoint and a tokenizer: data, and never more memory than they say."""

from __future__ import annotations

import contextlib
import copy
import json
import re
import zipfile
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prony.analysis.claims import judge
from prony.analysis.published_plots import draw
from prony.analysis.published_tables import StudyResults, fill
from prony.report import plots
from prony.report.build import report_text
from prony.report.published import claim_line, published_lines
from prony.report.published_plots import FILE, specification
from prony.sites import kubernetes_answers
from prony.store import group
from prony.store.database import is_newer
from prony.store.tabular import cell, without_mark
from prony.study.study_file import load_study
from prony_node.contract import files
from prony_node.contract.errors import RequestError, is_digits
from prony_node.contract.record import accept_record, parse_record, using
from prony_node.data.texts import MOST_GROWTH, _read, growth, load_tokenizer
from prony_node.workloads import find_workload
from prony_node.workloads.weights import read_weights

RECORDS = Path(__file__).parents[1] / "replay" / "records"
HOSTILE = ['id="\\074svg/onload=alert(1)//"', 'x id="\\q"', 'a\\"b', "\\", '"><script>alert(1)</script>', "']}{",
           "\\g<9>", "${alert(1)}", "url(#x)", 'href="#a"']  # fmt: skip


class Page(HTMLParser):
    """What of a page could run."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [tag] if tag in ("script", "iframe", "object", "embed", "base", "form", "link") else []
        self.found += [f"{tag} {name}" for name, _ in attrs if name.startswith("on")]
        self.found += [f"{tag} {name}" for name, value in attrs if (value or "").lower().startswith("javascript:")]


def record(ending: str) -> dict[str, Any]:
    (path,) = RECORDS.glob(f"*{ending}/record.json")
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def pair(text: str, where: str) -> list[dict[str, Any]]:
    """Two records of the same size that differ in one text."""
    first, second = record("a00200"), record("a01001")
    for one in (first, second):
        for key in ("settings", "effective"):
            one["trial"][key]["batch_size"] = 256
    if where == "value":
        for key in ("settings", "effective"):
            first["trial"][key]["data"], second["trial"][key]["data"] = text, "device"
    elif where == "name":
        for key in ("settings", "effective"):
            first["trial"][key][text], second["trial"][key][text] = "1", "2"
    else:
        for one in (first, second):
            one["metrics"]["throughput"]["unit"] = text
            one["unit"] = text
        second["trial"]["settings"]["batch_size"] = second["trial"]["effective"]["batch_size"] = 64
    return [first, second]


@pytest.mark.parametrize("where", ["value", "name", "unit"])
@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_of_a_record_runs_in_a_report_or_stops_it(text: str, where: str) -> None:
    page = report_text([parse_record(one) for one in pair(text, where)])
    assert Page(page).found == []
    assert "default-src 'none'" in page
    assert "<svg" in page
    assert "This plot is left out" not in page


def test_only_ids_in_tags_are_renamed() -> None:
    svg = '<svg width="1" height="2"><g id="a"/><text fill="url(#a)">id="\\074a"</text></svg>'
    assert plots.fit_for_page(svg, "n") == '<svg><g id="n-a"/><text fill="url(#n-a)">id="\\074a"</text></svg>'


def test_a_plot_that_cannot_be_drawn_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> str:
        raise ValueError("Expression parse error")

    monkeypatch.setattr(plots.vl_convert, "vegalite_to_svg", fail)
    assert "This plot is left out" in report_text([parse_record(one) for one in pair("host", "value")])


# --- numbers ---


@pytest.mark.parametrize("text", ["²", "٣", "", "9" * 5000, "-1", "1_0"])
def test_what_int_refuses_or_reads_otherwise_is_no_number(text: str, tmp_path: Path) -> None:
    assert not is_digits(text)
    assert not is_newer(text)
    assert kubernetes_answers._count(text) == 0
    assert kubernetes_answers.read_pod({"metadata": {"labels": {kubernetes_answers.INDEX: text}}}).index == 0
    (tmp_path / f"rank{text[:20]}x²").mkdir()
    (tmp_path / "rank²").mkdir()
    (tmp_path / "rank1").mkdir()
    assert list(files.rank_folders(tmp_path)) == [1]
    with pytest.raises(RequestError, match="there is no group"):
        group.find_group(text)


# --- CSV ---

CELLS = ["\uff1d1+1", "\uff0bcmd", "\uff0d1+x", "\uff20SUM(A1)", "\x0b=1", "\u00a0=1", "\ufeff=1", "\u200b=1", "\x00=1",
         "a;=cmd|' /C calc'!A0", "a;'=x", "a\t=x", "a\n=x", ";;+x"]  # fmt: skip


@pytest.mark.parametrize("text", CELLS)
def test_a_formula_behind_what_nobody_sees_or_another_separator_is_marked(text: str) -> None:
    marked = str(cell(text))
    for part in re.split("[;\t\n\r]", marked):
        seen = [one for one in part if one.isprintable() and not one.isspace()]
        assert seen[:1] == [] or seen[0] not in "=+-@\uff1d\uff0b\uff0d\uff20"
    assert without_mark(marked) == text


@given(st.text("=+-@;\t\r\n' a1\uff1d\u200b", max_size=12))
def test_every_mark_comes_off_again(text: str) -> None:
    assert without_mark(str(cell(text))) == text


# --- checkpoints, tokenizers, packed texts ---


def test_a_compressed_checkpoint_is_refused(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.save({"w": torch.zeros(2**20)}, tmp_path / "a.pt")
    assert set(read_weights(tmp_path / "a.pt")) == {"w"}
    with (
        zipfile.ZipFile(tmp_path / "a.pt") as whole,
        zipfile.ZipFile(tmp_path / "b.pt", "w", zipfile.ZIP_DEFLATED) as packed,
    ):
        for one in whole.namelist():
            packed.writestr(one, whole.read(one))
    with pytest.raises(RequestError, match=r"it is compressed, which torch.save never does"):
        read_weights(tmp_path / "b.pt")


def test_a_refused_checkpoint_is_said_in_our_words(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.save({"w": Path("x")}, tmp_path / "a.pt")
    with pytest.raises(RequestError, match=r"objects of other types, which could run code$"):
        read_weights(tmp_path / "a.pt")
    (tmp_path / "b.pt").write_bytes(b"hello")
    with pytest.raises(RequestError, match=r"it is damaged or another file$"):
        read_weights(tmp_path / "b.pt")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_checkpoint_is_tensors_or_a_sentence(tmp_path: Path, data: st.DataObject) -> None:
    torch = pytest.importorskip("torch")
    path = tmp_path / "a.pt"
    torch.save({"w": torch.zeros(4)}, path, _use_new_zipfile_serialization=data.draw(st.booleans()))
    content = path.read_bytes()
    at = data.draw(st.integers(0, len(content)))
    content = content[:at] + data.draw(st.binary(max_size=8)) + content[at + data.draw(st.integers(0, 12)) :]
    path.write_bytes(content)
    with contextlib.suppress(RequestError):
        read_weights(path)


TOKENIZER: dict[str, Any] = {
    "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
    "pre_tokenizer": {"type": "Whitespace"}, "post_processor": None, "decoder": None,
    "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1}, "unk_token": "a"},
}  # fmt: skip


def replace(pattern: dict[str, str], content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


@pytest.mark.parametrize(
    "steps",
    [[replace({"String": "a"}, "aa")] * 12, [replace({"Regex": "a|b"}, "aa")] * 12,
     [{"type": "Prepend", "prepend": "a" * 200}], [{"type": "ByteLevel"}] * 12,
     [{"type": "NFKC"}, {"type": "NFKD"}]],
)  # fmt: skip
def test_a_tokenizer_that_makes_texts_grow_is_refused(steps: list[Any], tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    path = tmp_path / "t.json"
    path.write_text(json.dumps({**TOKENIZER, "normalizer": {"type": "Sequence", "normalizers": steps}}))
    with pytest.raises(RequestError, match="can make a text more than 160 times as long"):
        load_tokenizer(path)


def test_tokenizers_in_use_do_not_grow_texts() -> None:
    """Those of Llama 2, of CLIP and of XLNet."""
    llama = [{"type": "Prepend", "prepend": "▁"}, replace({"String": " "}, "▁")]
    clip = [{"type": "NFC"}, replace({"Regex": "\\s+"}, " "), {"type": "Lowercase"}]
    for steps in (llama, clip):
        assert growth({"normalizer": {"normalizers": steps}, "pre_tokenizer": {"type": "ByteLevel"}}) <= MOST_GROWTH / 8
    xlnet = [replace({"String": "``"}, '"'), {"type": "NFKD"}, {"type": "StripAccents"}, {"precompiled_charsmap": ""}]
    assert growth({"normalizer": {"normalizers": xlnet}, "pre_tokenizer": {"type": "Metaspace"}}) <= MOST_GROWTH


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_tokenizer_is_one_or_a_sentence(tmp_path: Path, data: st.DataObject) -> None:
    pytest.importorskip("tokenizers")
    text = json.dumps({**TOKENIZER, "normalizer": replace({"String": "a"}, "b")})
    at = data.draw(st.integers(0, len(text)))
    text = text[:at] + data.draw(st.text(max_size=6)) + text[at + data.draw(st.integers(0, 12)) :]
    (tmp_path / "t.json").write_bytes(text.encode(errors="surrogatepass"))
    with contextlib.suppress(RequestError):
        load_tokenizer(tmp_path / "t.json")


def test_a_packed_text_that_asks_for_too_much_memory_is_said() -> None:
    class Stream:
        def read(self, _: int) -> bytes:
            raise MemoryError

    with pytest.raises(RequestError, match="it asks for too much memory to unpack"):
        _read(Stream(), Path("a.jsonl.xz"))  # type: ignore[arg-type]


# --- edited records in claims, tables and plots ---

STUDY = load_study("caraml", None, (), find_workload)
ODD = [None, True, -1, 0, -0.5, 1e308, 1e-320, 10**400, "x", "", [], {}, [None], {"a": 1}, float("nan"), "²", "\x00",
       "\ud800", "9" * 5000]  # fmt: skip


def replace_in(document: Any, data: st.DataObject) -> None:
    while True:
        keys = list(document) if isinstance(document, dict) else list(range(len(document)))
        key = data.draw(st.sampled_from(keys))
        if not isinstance(document[key], dict | list) or not document[key] or data.draw(st.integers(0, 3)) == 0:
            document[key] = data.draw(st.sampled_from(ODD))
            return
        document = document[key]


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_an_edited_record_is_judged_drawn_or_refused(data: st.DataObject) -> None:
    base, by_hash = record("c00000"), {}
    trials = [one.trial for one in STUDY.planned() if one.refused is None][:6]
    for trial in trials:
        one = copy.deepcopy(base)
        one["trial"] |= {"workload": trial.workload, "settings": dict(trial.settings), "hash": trial.hash}
        for part in data.draw(st.lists(st.sampled_from(["metrics", "trial", "work", "phases"]), max_size=3)):
            if isinstance(one[part], dict) and one[part]:
                replace_in(one[part], data)
        try:
            by_hash[trial.hash] = [accept_record(one)]
        except RequestError:
            continue
    known = StudyResults(trials, by_hash)
    try:
        with using("x"):
            claims, tables = judge(STUDY.claims, known, by_hash), [fill(spec, known) for spec in STUDY.tables]
            drawn = [draw(spec, known) for spec in STUDY.plots]
    except RequestError:
        return
    assert all(claim_line(one) for one in claims)
    assert all(published_lines(one) for one in tables)
    for plot in drawn:
        if plot.panels:
            json.dumps(plots.drawable(specification(plot, FILE)))
