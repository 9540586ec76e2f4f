"""If these fail, a run that was throttled or disturbed passes for a clean one, or a clean one is accused."""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from prony_node.facts import Watch, watch_checks
from prony_node.facts.processes import Process, own_tree

CUDA = {"kind": "cuda", "uuid": "GPU-x", "power_limit": {"set_w": 700.0}}
CPU = {"kind": "cpu"}


def series(count: int = 10, **values: Any) -> list[dict[str, Any]]:
    """Samples a second apart; a value that is a function is asked for each."""
    base = {"throttle": [], "sm_clock_mhz": 1980, "foreign_pids": [], "own_seen": True,
            "swap_in_pages": 0, "swap_out_pages": 0} | values  # fmt: skip
    return [
        {"t_s": float(t)} | {name: value(t) if callable(value) else value for name, value in base.items()}
        for t in range(count)
    ]


def judged(
    samples: list[dict[str, Any]], facts: dict[str, Any] = CUDA, window: Any = None
) -> dict[str, tuple[str, str]]:
    return {check["name"]: (check["level"], check["message"]) for check in watch_checks(samples, window, facts)}


def test_a_clean_run_passes_everything() -> None:
    checks = judged(series())
    assert {name: level for name, (level, _) in checks.items()} == dict.fromkeys(
        ("throttled", "clocks", "foreign-processes", "swap"), "pass"
    )


def test_power_limit_is_a_warning_with_the_limit() -> None:
    level, message = judged(series(throttle=["power limit"]))["throttled"]
    assert level == "warn"
    assert "700 W" in message


def test_heat_that_lasts_fails_and_a_moment_of_it_warns() -> None:
    assert judged(series(throttle=["hardware thermal"]))["throttled"][0] == "fail"
    assert judged(series(40, throttle=lambda t: ["hardware slowdown"] if t == 7 else []))["throttled"][0] == "warn"


def test_idle_and_application_clocks_are_not_throttling() -> None:
    assert judged(series(throttle=["idle", "application clocks"]))["throttled"][0] == "pass"


def test_a_clock_that_drops_by_more_than_five_per_cent_warns() -> None:
    assert judged(series(sm_clock_mhz=lambda t: 1980 - 90 * (t > 4)))["clocks"][0] == "pass"
    level, message = judged(series(sm_clock_mhz=lambda t: 1980 - 110 * (t > 4)))["clocks"]
    assert level == "warn"
    assert "1870" in message


def test_a_clock_that_wanders_under_a_power_limit_has_kept_its_level() -> None:
    level, message = judged(series(sm_clock_mhz=lambda t: 1700 - 110 * (t % 2)))["clocks"]
    assert level == "pass"
    assert "1590 to 1700" in message


def test_only_the_window_counts() -> None:
    samples = series(
        sm_clock_mhz=lambda t: 1980 if 3 <= t <= 7 else 345,
        throttle=lambda t: [] if 3 <= t <= 7 else ["power limit"],
    )
    checks = judged(samples, window=(3.0, 7.0))
    assert (checks["clocks"][0], checks["throttled"][0]) == ("pass", "pass")


def test_another_process_warns() -> None:
    level, message = judged(series(foreign_pids=lambda t: [4711] if t == 5 else []))["foreign-processes"]
    assert level == "warn"
    assert "4711" in message


def test_a_list_that_does_not_even_show_us_is_unknown() -> None:
    samples = series(own_seen=False, foreign_pids=[99], invisible="this container does not see ...")
    assert judged(samples)["foreign-processes"][0] == "unknown"


def test_a_virtual_machine_cannot_pass() -> None:
    assert judged(series(invisible="this virtual machine ..."))["foreign-processes"][0] == "unknown"


def test_memory_that_belongs_to_nobody_warns() -> None:
    assert judged(series(unaccounted_bytes=8 << 30))["foreign-processes"][0] == "warn"
    assert judged(series(unaccounted_bytes=100 << 20))["foreign-processes"][0] == "pass"


def test_swap() -> None:
    assert judged(series(swap_in_pages=lambda t: 10 * (t > 5)))["swap"][0] == "warn"


def test_nothing_seen_is_unknown_never_pass() -> None:
    for facts in (CUDA, CPU):
        for samples in ([], [{"t_s": 1.0}], [{"t_s": 1.0, "reason": "no sensor"}, {"t_s": 2.0}]):
            assert {level for level, _ in judged(samples, facts).values()} == {"unknown"}


def test_others_on_the_cpus() -> None:
    def samples(own_share: float) -> list[dict[str, Any]]:
        return series(
            cpu_total_s=lambda t: 4.0 * t, cpu_busy_s=lambda t: 3.0 * t,
            cpu_own_s=lambda t: own_share * 3.0 * t, cpu_stolen_s=0.0,
        )  # fmt: skip

    assert judged(samples(1.0), CPU)["foreign-processes"][0] == "pass"
    level, message = judged(samples(0.5), CPU)["foreign-processes"]
    assert level == "warn"
    assert "38%" in message or "37%" in message


def test_a_window_between_two_samples_uses_the_counters_around_it() -> None:
    samples = series(swap_out_pages=lambda t: 5 * (t > 4))
    assert judged(samples, window=(4.2, 4.8))["swap"][0] == "warn"


@given(
    st.lists(
        st.fixed_dictionaries(
            {"t_s": st.floats(0, 100)},
            optional={
                "throttle": st.none() | st.lists(st.sampled_from(["idle", "power limit", "odd"])),
                "sm_clock_mhz": st.none() | st.integers(0, 3000),
                "cpu_clock_mhz": st.none() | st.floats(0, 5000),
                "foreign_pids": st.none() | st.lists(st.integers(1, 9)),
                "own_seen": st.booleans(),
                "swap_in_pages": st.none() | st.integers(0, 9),
                "swap_out_pages": st.none() | st.integers(0, 9),
                "reason": st.none() | st.text(max_size=5),
            },
        )
    ),
    st.none() | st.tuples(st.floats(0, 100), st.floats(0, 100)),
    st.sampled_from([CPU, CUDA, {}]),
)
def test_any_samples_give_four_checks(samples: list, window: Any, facts: dict) -> None:
    checks = watch_checks(samples, window, facts)
    assert [check["name"] for check in checks] == ["throttled", "clocks", "foreign-processes", "swap"]
    assert all(check["level"] in ("pass", "warn", "fail", "unknown") and check["message"] for check in checks)


def test_a_watched_gpu(nvml: Callable[..., dict[str, Any]]) -> None:
    nvml(
        nvmlDeviceGetCurrentClocksEventReasons=4,
        nvmlDeviceGetComputeRunningProcesses=[
            {"struct": {"pid": os.getpid(), "usedGpuMemory": 4 << 30}},
            {"struct": {"pid": 1, "usedGpuMemory": 1}},
        ],
    )
    sample = Watch({"kind": "cuda", "uuid": "GPU-x"}).sample()
    assert sample["throttle"] == ["power limit"]
    assert sample["power_w"] == 76.5
    assert sample["foreign_pids"] == [1]
    assert sample["own_seen"]
    json.dumps(sample, allow_nan=False)


def test_a_gpu_without_sensors_leaves_its_reason(no_nvml: None) -> None:
    watch = Watch({"kind": "cuda", "uuid": "GPU-x"})
    level, message = judged([watch.sample(), watch.sample()])["throttled"]
    assert level == "unknown"
    assert "nvidia-ml-py" in message


def test_recorded_cpu_clocks(machine: Callable[[str], Path]) -> None:
    sample = Watch(CPU, machine("x86_two_sockets")).sample()
    assert sample["cpu_clock_mhz"] == 1995
    assert sample["cpu_throttle_events"] == 12  # of the four CPUs that are allowed


def burn(seconds: float) -> None:
    """Of CPU time: on a shared machine a second may hold little of it."""
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def test_our_own_work_is_not_foreign() -> None:
    """A child that burns a core, alive or ended, is ours: what is left over does not grow by it."""
    watch = Watch(CPU)
    before = watch.sample()
    child = multiprocessing.get_context("fork").Process(target=burn, args=(1.0,))
    child.start()
    child.join()
    after = watch.sample()
    assert after["cpu_own_s"] - before["cpu_own_s"] > 0.5


def test_own_tree_follows_children_and_survives_a_circle() -> None:
    processes = {pid: Process(pid, parent, "x", 0) for pid, parent in ((1, 0), (2, 1), (3, 2), (4, 1), (8, 9), (9, 8))}
    assert own_tree(processes, {2}) == {2, 3}
    assert own_tree(processes, {8}) == {8, 9}
