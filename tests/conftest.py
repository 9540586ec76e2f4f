"""Options of the whole suite."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

# No deadline and no complaint about slow drawing: these machines are shared, and no test may depend on their speed.
settings.register_profile("prony", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("prony")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--gpu", action="store_true", help="also run the tests that need an accelerator")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--gpu"):
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs an accelerator; opt in with --gpu"))
