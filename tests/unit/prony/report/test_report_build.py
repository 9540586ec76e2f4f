"""A report that loads something, hides a failure or runs a stranger's script is worse than none."""

from __future__ import annotations

import errno
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from documents import of_documents

from prony.report import build_report
from prony_node.contract import files
from prony_node.contract.errors import RequestError

build_report = of_documents(build_report)

GetRecord = Callable[[str], dict[str, Any]]
VOID = {"meta", "br", "hr", "img", "input", "link", "path", "line", "rect", "text"}


class Reader(HTMLParser):
    """Collects what a page would load, its ids, its links and its text; and that tags close."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.tags: list[str] = []
        self.open: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name == "id" and value:
                self.ids.append(value)
            if name in ("src", "href", "xlink:href", "srcset", "data", "poster"):
                (self.links if (value or "").startswith("#") else self.loaded).append(value or "")

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def read(path: Path) -> Reader:
    reader = Reader()
    reader.feed(path.read_text(encoding="utf-8"))
    assert reader.open == []
    return reader


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Path:
    replay = Path(__file__).parents[3] / "replay" / "records"
    folders = [record.parent for record in sorted(replay.glob("*/record.json"))]
    return build_report(folders, tmp_path_factory.mktemp("report") / "report.html")


def test_nothing_is_loaded_from_anywhere(everything: Path) -> None:
    page = read(everything)
    assert page.loaded == []
    text = everything.read_text(encoding="utf-8")
    assert not re.search(r"url\((?!#)", text)
    assert "@import" not in text
    assert "script" not in page.tags
    assert not {"iframe", "img", "link", "object", "embed"} & set(page.tags)


def test_a_page_of_runs_that_learned_is_whole_too(tmp_path: Path, learning_root: Path) -> None:
    folders = sorted(record.parent for record in learning_root.glob("*/record.json"))
    path = build_report(folders, tmp_path / "learned.html")
    page = read(path)
    assert page.loaded == []
    assert len(page.ids) == len(set(page.ids))
    assert {link[1:] for link in page.links} <= set(page.ids)
    assert page.tags.count("svg") == 4 + 2  # curves of the accuracy and of the loss, batch sizes without a target
    assert path.stat().st_size < 60_000 * len(folders)


def test_it_stays_small(everything: Path) -> None:
    assert everything.stat().st_size < 30_000 * 13


def test_ids_are_unique_and_links_lead_somewhere(everything: Path) -> None:
    page = read(everything)
    assert len(page.ids) == len(set(page.ids))
    assert {link[1:] for link in page.links} <= set(page.ids)
    used = re.findall(r"url\(#([^)]+)\)", everything.read_text(encoding="utf-8"))
    assert set(used) <= set(page.ids)


def test_every_run_failure_and_check_is_told(everything: Path) -> None:
    text = read(everything).text
    assert "22,730 images/s ± 0.27 %" in text
    assert "out-of-memory: the first step asked for 64.00 GiB" in text
    assert "ended from the keyboard during build" in text
    assert "the SM clock fell by 3 % during the window" in text
    assert "no peak is known for this device" in text
    assert "synthetic" in text


def test_sweep_and_series_are_drawn(everything: Path) -> None:
    page = read(everything)
    assert "wideresnet: images/s over batch_size" in page.text
    assert page.tags.count("svg") == 2 + 11  # two sweeps, and every run that has a series


def test_report_of_records_without_folders(tmp_path: Path, get_record: GetRecord) -> None:
    page = read(build_report([get_record("d00001")], tmp_path / "one.html"))
    assert "svg" not in page.tags
    assert "22,730 images/s" in page.text


def test_text_from_a_record_is_never_markup(tmp_path: Path, get_record: GetRecord) -> None:
    bad = "<script>alert(1)</script>\"'>"
    one, other = get_record("a00200"), get_record("a01001")
    for record in (one, other):
        record["trial"]["workload"] = record["synthetic"] = bad
        record["trial"]["effective"]["precision"] = bad + record["id"]
        record["facts"]["devices"][0]["name"] = bad
        record["checks"][0]["message"] = bad
        record["metrics"]["throughput"]["unit"] = bad
    one["id"] = "x" + bad
    page = read(build_report([one, other], tmp_path / "bad.html"))
    assert "script" not in page.tags
    assert bad in page.text


def test_a_torn_series_is_drawn_as_far_as_it_goes(tmp_path: Path, root: Path) -> None:
    folder = root / "resnet50-20260302T100000-d00001"
    steps = folder / "steps.csv"
    steps.write_text(steps.read_text(encoding="utf-8")[:-9], encoding="utf-8")
    assert "svg" in read(build_report([folder], tmp_path / "torn.html")).tags
    steps.write_text("block,steps,end_s\n\x00,,", encoding="utf-8")
    assert "svg" not in read(build_report([folder], tmp_path / "none.html")).tags


def test_nothing_to_report_and_nowhere_to_write_are_said(tmp_path: Path, get_record: GetRecord) -> None:
    with pytest.raises(RequestError, match="at least one run"):
        build_report([], tmp_path / "x.html")
    with pytest.raises(RequestError, match="is not a folder"):
        build_report([get_record("d00001")], tmp_path / "no" / "x.html")
    with pytest.raises(RequestError, match=r"no readable record\.json"):
        build_report([tmp_path], tmp_path / "x.html")
    assert list(tmp_path.iterdir()) == []


def test_a_device_is_written_to_and_not_replaced_by_a_file(tmp_path: Path, get_record: GetRecord) -> None:
    link = tmp_path / "out"
    link.symlink_to("/dev/null")
    build_report([get_record("d00001")], link)
    assert link.is_char_device()


def test_where_nothing_can_be_written_nor_removed_is_said(
    tmp_path: Path, get_record: GetRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    record = get_record("d00001")
    monkeypatch.setattr(files, "open_temporary", refused)
    monkeypatch.setattr(Path, "unlink", refused)
    with pytest.raises(RequestError, match=r"cannot be written to .*: Read-only file system"):
        build_report([record], tmp_path / "r.html")


def test_half_of_a_character_in_a_record_does_not_spoil_a_report(tmp_path: Path, get_record: GetRecord) -> None:
    record = get_record("d00001")
    record["facts"]["host"]["hostname"] = "\ud800"
    assert "resnet50" in build_report([record], tmp_path / "r.html").read_text(encoding="utf-8")


def test_bare_record_of_an_early_failure_is_reported(tmp_path: Path, get_record: GetRecord) -> None:
    record = get_record("b00f07")
    record |= {
        "metrics": {},
        "phases": {},
        "checks": [],
        "facts": {},
        "work": {},
        "unit": None,
        "steady": None,
    }
    record["trial"] |= {"effective": {}, "effective_hash": None}
    assert "out-of-memory" in read(build_report([record], tmp_path / "bare.html")).text
