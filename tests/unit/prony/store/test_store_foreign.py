"""Results of others become anchors with their source, in our words and units; what is no such file is refused."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prony.store import Store
from prony.store.anchors import Anchor, keep_anchors, put_anchors, read_anchors
from prony.store.foreign import FORMATS, ImportOptions, number_of, read_foreign
from prony.store.query import StoreQuery, ask_anchors, ask_records
from prony_node.contract.errors import RequestError

REPLAY = Path(__file__).parents[3] / "replay" / "foreign"
SOURCE = "a test, 2026, table 1"


def read(name: str, form: str, **given: dict[str, str]) -> list[Anchor]:
    return read_foreign(REPLAY / name, form, ImportOptions(SOURCE, **given))


def figures(anchors: list[Anchor]) -> list[tuple[str | None, str, float, str | None]]:
    return [(anchor.workload, anchor.metric, anchor.value, anchor.unit) for anchor in anchors]


def test_a_table_of_jube_between_bars() -> None:
    found = read("jube-pretty.txt", "jube", fixed={"device": "A100"})
    assert figures(found) == [
        ("800M", "tokens_per_device", 4012.25, "1/s"),
        ("800M", "energy", 12.5, "Wh"),
        ("800M", "tokens_per_device", 9120.5, "1/s"),
        ("800M", "tokens_per_device", 11870.0, "1/s"),
        ("800M", "energy", 3.25, "Wh"),
    ]
    assert (found[2].system, found[2].batch_size, found[2].devices, found[2].device) == ("SYS-A", 64, 4, "A100")
    assert {anchor.source for anchor in found} == {SOURCE}


def test_a_table_of_jube_of_before_and_as_csv() -> None:
    mapping = {"images_per_second": "value:throughput:images/s"}
    assert figures(read("jube-old.txt", "jube", columns=mapping)) == [(None, "throughput", 2310.75, "images/s")]
    found = read("jube.csv", "jube", columns=mapping, fixed={"workload": "resnet50"})
    assert [(anchor.value, anchor.system, anchor.more) for anchor in found] == [
        (2310.75, "SYS-A", {"loss": "6.9"}),
        (2710.0, "SYS-B", {"loss": "6.8"}),
    ]


def test_a_log_of_mlperf() -> None:
    found = read("mlperf.log", "mlperf", fixed={"device": "Test GPU"})
    assert figures(found) == [
        ("resnet", "time_to_quality", 1600.5, "s"),
        ("resnet", "quality", 0.7594, "accuracy"),
        ("resnet", "throughput", 14100.0, "samples/s"),
    ]
    assert (found[0].system, found[0].batch_size, found[0].more["submission_org"]) == ("1xTESTBOX", 3264, "Nobody")


def test_a_run_of_mlperf_that_was_given_up_reached_nothing(tmp_path: Path) -> None:
    log = (REPLAY / "mlperf.log").read_text(encoding="utf-8").replace("success", "aborted")
    (tmp_path / "x.log").write_text(log, encoding="utf-8")
    found = read_foreign(tmp_path / "x.log", "mlperf", ImportOptions(SOURCE))
    assert "time_to_quality" not in {anchor.metric for anchor in found}
    (tmp_path / "x.log").write_text(log + log, encoding="utf-8")
    with pytest.raises(RequestError, match="several runs"):
        read_foreign(tmp_path / "x.log", "mlperf", ImportOptions(SOURCE))


def test_reports_of_milabench() -> None:
    found = read("milabench.txt", "milabench")
    assert figures(found) == [
        ("bert-fp16", "throughput", 155.5, "items/s"),
        ("bert-fp16", "peak_memory", 24552 * 2**20, "B"),
        ("bert-tf32-fp16", "throughput", 154.25, "items/s"),
        ("bert-tf32-fp16", "peak_memory", 24552 * 2**20, "B"),
        ("llm-lora-ddp", "throughput", 16000.75, "items/s"),
    ], "what failed is left out"
    assert (found[0].device, found[0].precision, found[4].devices) == ("TEST-GPU 80GB", "fp16", 8)
    assert figures(read("milabench.json", "milabench"))[:2] == figures(found)[:2]
    assert [anchor.workload for anchor in read("milabench-old.txt", "milabench")][::2] == [
        "bert-fp16",
        "convnext_large-fp32",
    ]


def test_a_report_of_optimum_benchmark_in_our_units() -> None:
    found = read("optimum.json", "optimum")
    values = {anchor.metric: (round(anchor.value, 6), anchor.unit) for anchor in found}
    assert values["throughput"] == (1560.5, "tokens/s")
    assert values["energy"] == (0.72, "J")
    assert values["peak_memory"] == (280250000.0, "B")
    assert values["samples_per_wh"] == (103225.806, "tokens/Wh")
    assert (found[0].workload, found[0].precision, found[0].batch_size, found[0].mode) == (
        "gpt2",
        "fp16",
        2,
        "infer",
    )
    assert {anchor.position for anchor in found} == {"phase prefill"}, "loading is no rate"


def test_a_csv_with_a_mapping(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("Modell;GPU;Bilder/s;Notiz\nresnet50;A100;2310,5;x\nresnet50;H100;;y\n", "utf-8")
    mapping = {"Modell": "workload", "GPU": "device", "Bilder/s": "value:throughput:images/s"}
    found = read_foreign(tmp_path / "x.csv", "csv", ImportOptions(SOURCE, mapping))
    assert [(anchor.device, anchor.value) for anchor in found] == [("A100", 2310.5)], "a gap is no figure"
    assert found[0].more == {"Notiz": "x"}
    with pytest.raises(RequestError, match="unknown column 'Bilder'; did you mean 'Bilder/s'"):
        read_foreign(tmp_path / "x.csv", "csv", ImportOptions(SOURCE, {"Bilder": "value:throughput"}))
    with pytest.raises(RequestError, match="no column holds a figure"):
        read_foreign(tmp_path / "x.csv", "csv", ImportOptions(SOURCE))
    with pytest.raises(RequestError, match="did you mean 'workload'"):
        ImportOptions(SOURCE, {"Modell": "workloads"})
    with pytest.raises(RequestError, match="needs its source"):
        read_foreign(tmp_path / "x.csv", "csv", ImportOptions(" "))


@pytest.mark.parametrize(
    ("text", "value"),
    [("2310,5", 2310.5), ("1.234,5", 1234.5), ("0,5", 0.5), ("12,345.6", 12345.6), ("1,234,567", 1234567.0),
     ("0,123", 0.123), ("1,23,4", None), ("1234,5e3", 1234500.0), ("5 %", 5.0), ("nan", None), ("inf", None)],
)  # fmt: skip
def test_a_comma_is_of_thousands_or_of_a_fraction_and_never_dropped(text: str, value: float | None) -> None:
    assert number_of(text) == value


def test_a_comma_beside_semicolons_that_may_mean_either_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("GPU;value;metric\nA100;1,234;throughput\n", "utf-8")
    with pytest.raises(RequestError, match="'1,234' in row 1 may mean thousands or a fraction"):
        read_foreign(tmp_path / "x.csv", "csv", ImportOptions(SOURCE))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("device,value\nA100,2310,5\n", "row 1 has 3 cells under 2 names"),
        ("value,value\n1,2\n", "two columns have the name 'value'"),
        ("value,devices\n1,two\n", "devices is a whole number, not 'two'"),
        ('value,devices\n1,"1,5"\n', "devices is a whole number, not '1,5'"),
    ],
)
def test_a_table_that_could_be_misread_is_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "x.csv").write_text(text, "utf-8")
    with pytest.raises(RequestError, match=said):
        read_foreign(tmp_path / "x.csv", "csv", ImportOptions(SOURCE, fixed={"metric": "throughput"}))


def test_a_run_of_jube_without_a_figure_does_not_take_its_column_away(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text('model,rate[1/s]\n"ResNet, large",nan\nBERT,3.5\n"a, b",7\n', "utf-8")
    found = read_foreign(tmp_path / "x.csv", "jube", ImportOptions(SOURCE))
    assert figures(found) == [("BERT", "rate", 3.5, "1/s"), ("a, b", "rate", 7.0, "1/s")]


def test_importing_twice_changes_nothing_and_a_rebuild_keeps_anchors(root: Path) -> None:
    found = read("jube-pretty.txt", "jube")
    assert len(keep_anchors(root, found)) == 5
    assert keep_anchors(root, found) == []
    store = Store(root)
    for _ in range(2):
        store.ask(lambda connection: put_anchors(connection, found))
    store.close()
    (root / "index.sqlite").unlink()
    answer = ask_anchors(Store(root), StoreQuery("workload=800M energy>4", columns=("source", "energy", "system")))
    assert answer.rows == [(SOURCE, 12.5, "SYS-A")]
    assert len(ask_anchors(Store(root), StoreQuery()).rows) == 5
    assert len(ask_records(Store(root), StoreQuery()).rows) == 13, "anchors are never among the records"


def test_a_file_of_anchors_that_is_not_whole_is_left_out(root: Path) -> None:
    keep_anchors(root, read("jube-pretty.txt", "jube"))
    (root / "anchors" / "torn.json").write_text('{"schema": "prony.anchors/1", "anch', encoding="utf-8")
    (root / "anchors" / "other.json").write_text(
        '{"schema": "prony.anchors/1", "anchors": [{"x": 1}]}', encoding="utf-8"
    )
    kept = json.loads(next((root / "anchors").glob("*[0-9a-f].json")).read_text(encoding="utf-8"))
    for number, wrong in enumerate(
        [{"value": float("nan")}, {"metric": ["x"], "value": {}}, {"more": 3}, {"devices": -1}]
    ):
        document = kept | {"anchors": [kept["anchors"][0] | wrong]}
        (root / "anchors" / f"wrong{number}.json").write_text(json.dumps(document), encoding="utf-8")
    assert len(read_anchors(root)) == 5
    assert len(Store(root).rebuild().ingested) == 13


WORDS = [
    "|", "-", "\n", ",", ";", "{", "}", "[", "]", '"', ":", " ", "perf", "peak_memory", "bench", "1.5", "nan", "1e999",
    ":::MLLOG ", '{"key": "run_stop", "time_ms": 5, "metadata": {"status": "success"}}', "run_start", "true", "null",
    '{"key": "run_start", "time_ms": 1}', '"report"', '"throughput"', '{"unit": "s", "value": 1}', "fail", "|---|---|",
    "value", "metric", "\0", "é", "-5",
]  # fmt: skip


@settings(max_examples=250)
@given(
    st.one_of(st.lists(st.sampled_from(WORDS), max_size=40).map("".join), st.text(max_size=200)),
    st.sampled_from([*FORMATS]),
)
def test_whatever_a_file_holds_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, text: str, form: str
) -> None:
    path = tmp_path_factory.getbasetemp() / "foreign"
    path.write_text(text, encoding="utf-8", errors="replace")
    try:
        found = read_foreign(path, form, ImportOptions(SOURCE))
    except RequestError:
        return
    assert all(anchor.source == SOURCE and abs(anchor.value) < float("inf") for anchor in found)


@settings(max_examples=100)
@given(st.data())
def test_a_damaged_file_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    name, form = data.draw(
        st.sampled_from([
            ("jube-pretty.txt", "jube"), ("mlperf.log", "mlperf"), ("milabench.txt", "milabench"),
            ("milabench.json", "milabench"), ("optimum.json", "optimum"), ("jube.csv", "jube"),
        ])
    )  # fmt: skip
    text = (REPLAY / name).read_text(encoding="utf-8")
    at = data.draw(st.integers(0, len(text)))
    damaged = text[:at] + data.draw(st.text(max_size=8)) + text[at + data.draw(st.integers(0, 40)) :]
    path = tmp_path_factory.getbasetemp() / "damaged"
    path.write_text(damaged, encoding="utf-8", errors="replace")
    with contextlib.suppress(RequestError):
        read_foreign(path, form, ImportOptions(SOURCE))
