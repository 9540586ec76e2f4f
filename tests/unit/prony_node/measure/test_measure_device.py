"""The device that was named, the best one otherwise; caches, latency and CPU time beside it."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from prony_node.backends.torch.backend import MissingDevice, choose_device, device_name, machine_of
from prony_node.backends.torch.compiling import cache_state, use_cache
from prony_node.backends.torch.facts import switches
from prony_node.backends.torch.step import exact_fp32, is_depthwise, set_matrix_modes, untried
from prony_node.contract.record import CompileCacheUse
from prony_node.measure.cpu_usage import CpuUsage
from prony_node.measure.loop import LEAST_REQUESTS, MOST_REQUESTS, latency_metrics


def pretend(monkeypatch: pytest.MonkeyPatch, kind: str | None, count: int = 1) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: kind is not None)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device(kind) if kind else None)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: count)


def test_auto_is_the_best_device_found(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, None)
    assert choose_device("auto") == torch.device("cpu")
    pretend(monkeypatch, "cuda")
    assert choose_device("auto") == torch.device("cuda", 0)
    assert choose_device("cpu") == torch.device("cpu")


@pytest.mark.parametrize(
    ("present", "wanted", "sentence"),
    [(None, "cuda", "device=cuda is not here; torch .* sees only cpu"),
     ("xpu", "cuda", "sees only xpu and cpu"), ("cuda", "cuda:2", r"torch sees 2 device\(s\) of kind cuda"),
     (None, "mps", "sees only cpu")],
)  # fmt: skip
def test_a_device_that_is_not_here_is_named(
    monkeypatch: pytest.MonkeyPatch, present: str | None, wanted: str, sentence: str
) -> None:
    pretend(monkeypatch, present, 2)
    with pytest.raises(MissingDevice, match=sentence):
        choose_device(wanted)


def test_a_named_device_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, "cuda", 2)
    assert choose_device("cuda") == torch.device("cuda", 0)
    assert choose_device("cuda:1") == torch.device("cuda", 1)


def test_a_network_of_depthwise_convolutions_is_told_from_one_that_has_a_few() -> None:
    dense, depthwise = nn.Conv2d(8, 8, 3), nn.Conv2d(8, 8, 3, groups=8)
    assert is_depthwise(nn.Sequential(dense, depthwise))
    assert not is_depthwise(nn.Sequential(*(nn.Conv2d(8, 8, 3) for _ in range(10)), depthwise))
    assert not is_depthwise(nn.Sequential(dense, nn.Conv2d(8, 8, 3, groups=2), nn.Linear(2, 2)))
    assert not is_depthwise(nn.Linear(2, 2))


def test_a_cpu_has_no_device_memory() -> None:
    machine = machine_of(torch.device("cpu"), 2)
    assert (machine.device, machine.memory_gib, machine.cores) == ("cpu", None, 2)
    assert device_name(torch.device("cpu")) == "cpu"


def test_a_reference_has_no_tf32_whatever_the_step_has() -> None:
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark
    try:
        set_matrix_modes("tf32", autotune=False)
        with exact_fp32():
            assert not matmul.allow_tf32
            assert not cudnn.allow_tf32
        assert matmul.allow_tf32
        assert cudnn.allow_tf32
        set_matrix_modes("fp32", autotune=True)  # fp32 means fp32, convolutions too
        assert (matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark) == (False, False, True)
    finally:
        matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark = before


def test_the_default_precision_is_torch_s_own() -> None:
    """As a process of torch starts: TF32 in convolutions, not in other products; a reference has none in between."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark
    asked = "import torch; b = torch.backends; print(b.cuda.matmul.allow_tf32, b.cudnn.allow_tf32)"
    fresh = subprocess.run([sys.executable, "-c", asked], check=True, capture_output=True, text=True, timeout=300)
    try:
        set_matrix_modes("tf32", autotune=False)
        set_matrix_modes("default", autotune=False)
        assert f"{matmul.allow_tf32} {cudnn.allow_tf32}" == fresh.stdout.strip() == "False True"
        assert torch.get_float32_matmul_precision() == "highest"
        assert (switches().float32_matmul_precision, switches().cudnn_allow_tf32) == ("highest", True)
        with exact_fp32():
            assert not cudnn.allow_tf32
        assert (matmul.allow_tf32, cudnn.allow_tf32) == (False, True)
    finally:
        matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark = before


def test_a_cold_cache_is_the_run_s_own_and_a_warm_one_is_shared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        monkeypatch.setenv(name, "x")  # so that what is set below is undone
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    closing = ExitStack()
    use_cache({"compile": "off"}, tmp_path, closing)
    assert "TORCHINDUCTOR_CACHE_DIR" not in os.environ
    assert use_cache({"compile": "default", "compile_cache": "warm"}, tmp_path, closing) is None
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "home" / "prony" / "compile")
    use_cache({"compile": "default", "compile_cache": "cold"}, tmp_path, closing)
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "compile_cache")
    use_cache({"compile": "default", "compile_cache": "warm"}, tmp_path, closing)  # a place that the user named stays
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "compile_cache")
    assert cache_state({"compile": "off"}).state == "none"


def test_a_user_without_a_home_compiles_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "x")  # so that what is set below is undone
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)

    def homeless(*_: object) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    with ExitStack() as closing:
        note = use_cache({"compile": "default", "compile_cache": "warm"}, tmp_path, closing)
        assert "there is no home folder" in str(note)
        place = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])  # torch's own is in /tmp, where others may have made it
        assert place.stat().st_mode & 0o777 == 0o700
    assert not place.exists()


@pytest.mark.parametrize(
    ("hits", "misses", "state"), [(0, 2, "cold"), (2, 0, "warm"), (1, 1, "partly warm"), (0, 0, "unknown")]
)
def test_the_state_of_the_cache_is_what_the_compiler_counted(
    monkeypatch: pytest.MonkeyPatch, hits: int, misses: int, state: str
) -> None:
    from torch._dynamo.utils import counters

    monkeypatch.setitem(counters["inductor"], "fxgraph_cache_hit", hits)
    monkeypatch.setitem(counters["inductor"], "fxgraph_cache_miss", misses)
    monkeypatch.setitem(counters["aot_autograd"], "autograd_cache_hit", 0)
    monkeypatch.setitem(counters["aot_autograd"], "autograd_cache_miss", 0)
    assert cache_state({"compile": "default"}) == CompileCacheUse(state, hits, misses)


def test_latency_is_of_one_request_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def batches() -> object:
        while True:
            calls.append("batch")
            yield ()

    metrics, requests = latency_metrics(
        lambda batch: calls.append("step"),
        batches(),  # type: ignore[arg-type]
        lambda: calls.append("synchronise"),
    )
    assert requests == MOST_REQUESTS
    assert calls == ["batch", "synchronise", "step", "synchronise"] * requests
    p50, p90, p99 = (metrics[f"latency_p{q}"].value for q in (50, 90, 99))
    assert 0 < p50 <= p90 <= p99
    monkeypatch.setattr("prony_node.measure.loop.LATENCY_S", 0.0)
    _, requests = latency_metrics(lambda batch: None, iter([()] * LEAST_REQUESTS), lambda: None)
    assert requests == LEAST_REQUESTS  # slow requests are still enough of them for a percentile


def burn(stop: object) -> None:
    while not stop.is_set():  # type: ignore[attr-defined]
        pass


def test_the_cpu_time_of_loader_workers_counts() -> None:
    context = multiprocessing.get_context("fork")
    stop = context.Event()
    worker = context.Process(target=burn, args=(stop,))
    worker.start()
    try:
        usage = CpuUsage(1)
        deadline = time.monotonic() + 30
        alone = usage.metric()
        while alone.value < 0.1 and time.monotonic() < deadline:
            time.sleep(0.05)
            alone = usage.metric()
        assert alone.value >= 0.1  # this process sleeps: whatever is used, the worker used
    finally:
        stop.set()
        worker.join(10)
    assert alone.unit == "1"
    assert "1 cores" in alone.scope


def test_kernels_are_not_tried_out_for_a_batch_that_comes_once(make_step: Any) -> None:
    """Trying them out for the held-out batch took seconds of every build."""
    step, task = make_step("wideresnet", size="tiny")
    batch = task.sample(torch.Generator().manual_seed(0), 4)
    seen: list[bool] = []
    inner = step._loss
    step._loss = lambda *given: seen.append(torch.backends.cudnn.benchmark) or inner(*given)
    before = torch.backends.cudnn.benchmark
    try:
        for chosen in (True, False):
            torch.backends.cudnn.benchmark = chosen
            step.held_out_loss(batch)
            assert torch.backends.cudnn.benchmark is chosen
            with pytest.raises(ZeroDivisionError), untried():
                raise ZeroDivisionError
            assert torch.backends.cudnn.benchmark is chosen
        assert seen == [False, False]
    finally:
        torch.backends.cudnn.benchmark = before
