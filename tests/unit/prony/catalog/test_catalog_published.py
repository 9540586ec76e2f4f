"""The published figures in the catalog are read whole, each with where it stands."""

from __future__ import annotations

import csv
from importlib import resources

import pytest

from prony.catalog import COUNTS, FIELDS, figures, published_names


def test_the_catalog_has_the_publications() -> None:
    assert published_names() == ["caraml-sc24", "hurt-nrp", "nasari-pearc22", "olivia-gh200"]


@pytest.mark.parametrize("name", published_names())
def test_every_row_is_a_figure_with_its_source(name: str) -> None:
    text = (resources.files("prony.catalog") / "published" / f"{name}.csv").read_text(encoding="utf-8")
    rows = list(csv.DictReader(text.splitlines()))
    found = figures(name)
    assert len(found) == len(rows) > 30
    assert set(rows[0]) == set(FIELDS), "a column that is not read, or one that is not there"
    for row, figure in zip(rows, found, strict=True):
        assert figure.value == float(row["value"]) > 0
        assert figure.study == name
        assert all((figure.place, figure.system, figure.accelerator, figure.workload, figure.metric, figure.unit))
        assert [figure.text(count) for count in COUNTS] == [row[count] for count in COUNTS]
