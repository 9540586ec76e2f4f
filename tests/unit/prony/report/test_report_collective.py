"""The curve of a collective is shown message by message, whoever wrote the record."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from documents import of_documents
from hypothesis import given
from hypothesis import strategies as st

from prony.cli.console import make_console
from prony.cli.tables import print_record
from prony.report import build_report
from prony.report.lines import binding_lines, collective_lines, collective_plot, collective_table
from prony_node.contract.errors import RequestError

print_record, build_report, binding_lines = map(of_documents, (print_record, build_report, binding_lines))
collective_lines, collective_plot, collective_table = map(
    of_documents, (collective_lines, collective_plot, collective_table)
)

POINT = {
    "size_bytes": 2**20, "time_s": 1e-4, "time_low_s": 0.98e-4, "time_high_s": 1.02e-4,
    "algorithm_bandwidth": 2**20 / 1e-4, "bus_bandwidth": 1.75 * 2**20 / 1e-4,
    "bus_bandwidth_low": 1.7 * 2**20 / 1e-4, "bus_bandwidth_high": 1.8 * 2**20 / 1e-4, "operations": 4000,
}  # fmt: skip
WRONG = {"size_bytes": 2**30, "time_s": None, "reason": "the answer was wrong on rank 3"}
COLLECTIVE = {
    "operation": "allreduce",
    "ranks": 8,
    "backend": "nccl",
    "factor": 1.75,
    "note": "",
    "curve": [POINT, WRONG],
}
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)


def test_a_row_a_message() -> None:
    table = collective_table({"collective": COLLECTIVE})
    assert table is not None
    assert table.rows == [
        ["1 MiB", "100.0 µs ± 2.0 %", "10.49 GB/s", "18.35 GB/s"],
        ["1 GiB", "the answer was wrong on rank 3", "–", "–"],
    ]
    assert ("bus bandwidth", "1.75 x size / time") in collective_lines({"collective": COLLECTIVE})


def test_show_and_report_have_the_curve(
    get_record: Callable[[str], dict[str, Any]], tmp_path: Path, root: Path
) -> None:
    record = get_record(next(root.glob("*/record.json")).parent.name)
    record["collective"] = {**COLLECTIVE, "curve": [POINT, {**POINT, "size_bytes": 2**21}, WRONG]}
    console = make_console()
    with console.capture() as captured:
        print_record(console, record, None)
    assert "the answer was wrong on rank 3" in captured.get()
    page = build_report([record], tmp_path / "report.html").read_text(encoding="utf-8")
    assert "Bus bandwidth over the size of the message" in page
    assert "18.35 GB/s" in page


def test_what_ranks_were_bound_to_is_shown_and_the_same_of_several_together() -> None:
    left = {"bind": "numa", "cores": "0-7", "node": 0, "memory": "of node 0 first", "reason": ""}
    right = {"bind": "numa", "cores": None, "node": None, "memory": None, "reason": "not known"}
    record = {"binding": [{"rank": 0, **left}, {"rank": 1, **left}, {"rank": 2, **right}, "x", {"rank": "y"}]}
    assert binding_lines(record) == [
        ("rank 0, 1", "cores 0-7; memory of node 0 first"),
        ("rank 2", "not known"),
    ]
    assert binding_lines({"binding": {"rank": 0}}) == []


@given(
    st.fixed_dictionaries(
        {}, optional={"ranks": SCALARS, "factor": SCALARS, "note": SCALARS,
                      "curve": SCALARS | st.lists(st.dictionaries(st.sampled_from(sorted(POINT)), SCALARS) | SCALARS)}
    )
    | SCALARS
)  # fmt: skip
def test_a_stranger_s_collective_is_shown_or_refused(stated: Any) -> None:
    record = {"collective": stated, "trial": {"workload": "allreduce", "settings": {}}}
    try:
        collective_lines(record)
    except RequestError:
        return
    collective_table(record)
    collective_plot(record)
