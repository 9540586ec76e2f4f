"""If these fail, a run that was throttled or disturbed passes for a clean one, or a clean one is accused."""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prony_node.contract.facts import ConditionSample, DeviceFacts
from prony_node.contract.typed import decode, encode
from prony_node.facts import Watch, watch_checks
from prony_node.facts.tree import Tree
from prony_node.facts.watch import Process, allowed_times, own_tree

CUDA = {"kind": "cuda", "uuid": "GPU-x", "power_limit": {"set_w": 700.0}}
CPU = {"kind": "cpu"}
H200 = {
    "kind": "cuda", "uuid": "GPU-x", "power_limit": {"set_w": 700.0, "default_w": 700.0},
    "clocks": {"sm_max_mhz": 1980, "memory_max_mhz": 3201}, "pci": {"generation_max": 5, "width_max": 16},
}  # fmt: skip
QUIET = {
    "memory_clock_mhz": 3201, "pcie_generation": 5, "pcie_width": 16, "ecc_uncorrected": 0, "remapped_rows": 0,
    "xids": [], "cgroup_throttled": 3, "cgroup_throttled_s": 0.2, "cpu_own_s": lambda t: 1.0 * t,
    "allowed_total_s": lambda t: 16.0 * t, "allowed_idle_s": lambda t: 14.0 * t,
    "memory_own_bytes": 4 << 30, "memory_free_bytes": 64 << 30,
}  # fmt: skip
ON_CPU = ["throttled", "clocks", "foreign-processes", "cpu-limit", "swap", "host-memory"]
ON_DEVICE = [
    "throttled", "clocks", "memory-clock", "foreign-processes", "pcie-link", "device-errors", "host-cpus",
    "cpu-limit", "swap", "host-memory",
]  # fmt: skip


def series(count: int = 10, **values: Any) -> list[dict[str, Any]]:
    """Samples a second apart; a value that is a function is asked for each."""
    base = {"throttle": [], "sm_clock_mhz": 1980, "foreign_pids": [], "own_seen": True,
            "swap_in_pages": 0, "swap_out_pages": 0} | values  # fmt: skip
    return [
        {"t_s": float(t)} | {name: value(t) if callable(value) else value for name, value in base.items()}
        for t in range(count)
    ]


def judged(
    samples: list[dict[str, Any]] | list[ConditionSample], facts: dict[str, Any] = CUDA, window: Any = None
) -> dict[str, tuple[str, str]]:
    found = [decode(ConditionSample, one) if isinstance(one, dict) else one for one in samples]
    checks = watch_checks(found, window, decode(DeviceFacts, facts))
    return {check.name: (check.level, check.message) for check in checks}


def test_a_clean_run_passes_everything() -> None:
    checks = judged(series(**QUIET), H200)
    assert {name: level for name, (level, _) in checks.items()} == dict.fromkeys(ON_DEVICE, "pass")


def test_a_run_at_its_default_power_limit_passes_everything() -> None:
    """The clock is low, wanders and falls with heat: that is how fast such a device is."""
    clocks = lambda t: 1720 - 8 * t - 90 * (t % 3)  # noqa: E731
    checks = judged(series(20, **QUIET | {"throttle": ["power limit"], "sm_clock_mhz": clocks}), H200)
    assert {level for level, _ in checks.values()} == {"pass"}
    assert "power limit in 20 of 20 samples" in checks["throttled"][1]


PLANTED = {
    "a fixed clock": ("clocks", {"sm_clock_mhz": 1005}),
    "a fixed clock by application clocks": ("clocks", {"sm_clock_mhz": 1005, "throttle": ["application clocks"]}),
    "a clock that alternates": ("clocks", {"sm_clock_mhz": lambda t: 1900 if t % 2 else 1300}),
    "a clock that alternates slowly": ("clocks", {"sm_clock_mhz": lambda t: 1900 if t // 3 % 2 else 1300}),
    "a clock that alternates at the power limit": (
        "clocks", {"sm_clock_mhz": lambda t: 1900 if t % 2 else 1300, "throttle": ["power limit"]},
    ),
    "half the memory clock": ("memory-clock", {"memory_clock_mhz": 1600}),
    "half the memory clock at times": ("memory-clock", {"memory_clock_mhz": lambda t: 1600 if t % 4 == 0 else 3201}),
    "all cores taken by others": ("host-cpus", {"allowed_idle_s": lambda t: 0.2 * t}),
    "a control group that stops us": (
        "cpu-limit", {"cgroup_throttled": lambda t: 9 * t, "cgroup_throttled_s": lambda t: 0.3 * t},
    ),
    "half the lanes": ("pcie-link", {"pcie_width": 8}),
    "a slow link": ("pcie-link", {"pcie_generation": 3}),
    "an XID": ("device-errors", {"xids": lambda t: [79] if t == 4 else []}),
    "a remapped row": ("device-errors", {"remapped_rows": lambda t: 1 if t > 6 else 0}),
    "an uncorrected error": ("device-errors", {"ecc_uncorrected": lambda t: 5 if t > 6 else 4}),
}  # fmt: skip


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_warns_and_nothing_else_does(fault: str) -> None:
    name, values = PLANTED[fault]
    levels = {check: level for check, (level, _) in judged(series(20, **QUIET | values), H200).items()}
    assert levels == dict.fromkeys(ON_DEVICE, "pass") | {name: "warn"}


def test_a_low_clock_whose_reasons_cannot_be_read_is_unknown() -> None:
    assert judged(series(20, **QUIET | {"sm_clock_mhz": 1005, "throttle": None}), H200)["clocks"][0] == "unknown"


def test_a_link_is_judged_by_its_best_moment() -> None:
    """An idle link goes down to a lower generation."""
    samples = series(**QUIET | {"pcie_generation": lambda t: 5 if t == 3 else 1})
    assert judged(samples, H200)["pcie-link"][0] == "pass"


def test_errors_before_the_window_count() -> None:
    samples = series(20, **QUIET | {"xids": lambda t: [31] if t == 1 else []})
    level, message = judged(samples, H200, window=(8.0, 18.0))["device-errors"]
    assert (level, message) == ("warn", "XID 31")


def test_own_use_of_all_cores_is_not_others() -> None:
    samples = series(**QUIET | {"cpu_own_s": lambda t: 15.9 * t, "allowed_idle_s": lambda t: 0.0 * t})
    assert judged(samples, H200)["host-cpus"][0] == "pass"


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


MIB = 1 << 20


@pytest.mark.parametrize(
    ("grows", "level"),
    [
        (lambda t: 4000 + 10 * t, "warn"),
        (lambda t: 4000 + 10 * t + 3 * (t % 2), "warn"),  # and a little noise
        (lambda t: 4000 + t, "pass"),  # too little in this window
        (lambda t: 4000 + 300 * (1 - 0.8**t), "pass"),  # an allocator that warms up
        (lambda t: 4000 + 300 * (t > 5), "pass"),  # something was loaded once
        (lambda t: 4000 + 200 * (t % 3), "pass"),  # freed, and taken again
        (lambda t: 4000 - 10 * t, "pass"),
    ],
)
def test_memory_that_grows_in_a_straight_line_is_a_doubt(grows: Callable[[int], float], level: str) -> None:
    samples = series(12, memory_own_bytes=lambda t: int(grows(t) * MIB), memory_free_bytes=1000 * MIB)
    assert judged(samples)["host-memory"][0] == level


def test_a_leak_is_told_with_what_it_will_fill() -> None:
    samples = series(12, memory_own_bytes=lambda t: 10 * t * MIB, memory_free_bytes=6000 * MIB)
    text = judged(samples)["host-memory"][1]
    assert "+110 MiB of host memory in 11 s" in text
    assert "5.9 GiB that are free last 10 min" in text
    slow = series(40, memory_own_bytes=lambda t: 17 * MIB * t * 100 // 3900, memory_free_bytes=1 << 45)
    slow = [{**sample, "t_s": 10 * sample["t_s"]} for sample in slow]  # 157 MiB an hour, of 32 TiB
    assert judged(slow)["host-memory"][0] == "pass"


def test_a_short_window_tells_no_leak() -> None:
    assert judged(series(7, memory_own_bytes=lambda t: 10 * t * MIB))["host-memory"][0] == "unknown"
    assert judged(series(20))["host-memory"][0] == "unknown"


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
                "memory_clock_mhz": st.none() | st.integers(0, 4000),
                "pcie_width": st.none() | st.integers(0, 16),
                "pcie_generation": st.none() | st.integers(0, 6),
                "remapped_rows": st.none() | st.integers(0, 3),
                "xids": st.none() | st.lists(st.integers(1, 99)),
                "allowed_total_s": st.none() | st.floats(0, 9),
                "allowed_idle_s": st.none() | st.floats(0, 9),
                "cpu_own_s": st.none() | st.floats(0, 9),
                "cgroup_throttled": st.none() | st.integers(0, 9),
                "cgroup_throttled_s": st.none() | st.floats(0, 9),
                "swap_in_pages": st.none() | st.integers(0, 9),
                "swap_out_pages": st.none() | st.integers(0, 9),
                "memory_own_bytes": st.none() | st.integers(0, 1 << 50),
                "memory_free_bytes": st.none() | st.integers(0, 1 << 50),
                "reason": st.none() | st.text(max_size=5),
            },
        )
    ),
    st.none() | st.tuples(st.floats(0, 100), st.floats(0, 100)),
    st.sampled_from([CPU, CUDA, H200, {}]),
)
def test_any_samples_give_the_same_checks(samples: list, window: Any, facts: dict) -> None:
    checks = judged(samples, facts, window)
    assert list(checks) == (ON_DEVICE if "uuid" in facts else ON_CPU)
    assert all(level in ("pass", "warn", "fail", "unknown") and message for level, message in checks.values())


def test_a_watched_gpu(nvml: Callable[..., dict[str, Any]]) -> None:
    nvml(
        nvmlDeviceGetCurrentClocksEventReasons=4,
        nvmlDeviceGetComputeRunningProcesses=[
            {"struct": {"pid": os.getpid(), "usedGpuMemory": 4 << 30}},
            {"struct": {"pid": 1, "usedGpuMemory": 1}},
        ],
    )
    sample = Watch(DeviceFacts(kind="cuda", uuid="GPU-x")).sample()
    assert sample.throttle == ("power limit",)
    assert sample.power_w == 76.5
    assert sample.foreign_pids == (1,)
    assert sample.own_seen
    json.dumps(encode(sample), allow_nan=False)


class Timeout(Exception):
    """What NVML raises when no event waits."""


def test_errors_of_a_watched_gpu(nvml: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that are remapped and an XID that comes while the run goes on are read from NVML."""
    rows, waiting = [(0, 1, 0, 0)], []

    def wait(events: Any, timeout_ms: int) -> Any:
        assert timeout_ms == 0
        if not waiting:
            raise Timeout("Timeout")
        return SimpleNamespace(eventType=8, eventData=waiting.pop())

    nvml(
        nvmlDeviceGetRemappedRows=lambda device: rows[0],
        nvmlDeviceGetTotalEccErrors=lambda *arguments: 0,
        nvmlEventSetCreate=1,
        nvmlDeviceRegisterEvents=lambda device, kinds, events: None,
        nvmlEventSetWait_v2=wait,
    )
    watch = Watch(DeviceFacts(kind="cuda", uuid="GPU-x"))
    samples = [watch.sample()]
    assert (samples[0].pcie_generation, samples[0].pcie_width) == (5, 16)
    assert samples[0].xids == ()
    assert judged([*samples, watch.last_sample()])["device-errors"][0] == "pass"
    rows[0] = (0, 3, 1, 0)
    waiting.append(94)
    level, message = judged([*samples, watch.last_sample()])["device-errors"]
    assert level == "warn"
    assert "2 new remapped rows" in message
    assert "XID 94" in message


def test_a_gpu_that_tells_of_no_errors(nvml: Callable[..., dict[str, Any]]) -> None:
    nvml()
    watch = Watch(DeviceFacts(kind="cuda", uuid="GPU-x"))
    samples = [watch.sample(), watch.last_sample()]
    assert judged(samples)["device-errors"][0] == "unknown"
    assert samples[0].reason is None


STAT = "usage_usec 10\nnr_periods 90\nnr_throttled {}\nthrottled_usec {}\n"


def test_cgroup_throttling_is_read(tmp_path: Path) -> None:
    files = {
        "/proc/self/mountinfo": "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
        "/proc/self/cgroup": "0::/job/step\n",
        "/sys/fs/cgroup/cpu.stat": "usage_usec 10\n",
        "/sys/fs/cgroup/job/cpu.max": "200000 100000\n",
        "/sys/fs/cgroup/job/cpu.stat": STAT.format(5, 1000000),
        "/sys/fs/cgroup/job/step/cpu.stat": STAT.format(0, 0),
    }
    for name, text in files.items():
        path = tmp_path / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    watch = Watch(DeviceFacts(kind="cpu"), tmp_path)
    before = replace(watch.sample(), t_s=0.0)
    (tmp_path / "sys/fs/cgroup/job/cpu.stat").write_text(STAT.format(25, 3500000))
    after = replace(watch.sample(), t_s=10.0)
    level, message = judged([before, after], CPU)["cpu-limit"]
    assert level == "warn"
    assert "20 times, for 2.5 s of 10.0 s" in message
    (tmp_path / "sys/fs/cgroup/job/cpu.max").write_text("max 100000\n")
    free = Watch(DeviceFacts(kind="cpu"), tmp_path)
    assert judged([free.sample(), free.sample()], CPU)["cpu-limit"][0] == "pass"


def test_the_cpus_that_we_may_use_are_counted_alone(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/stat").write_text(
        "cpu  300 0 0 300 0 0 0 0 0 0\ncpu0 300 0 0 0 0 0 0 0 0 0\ncpu1 0 0 0 290 10 0 0 0 0 0\n"
    )
    (total_s, idle_s), (_, busy_idle_s) = (allowed_times(Tree(tmp_path), {cpu}) for cpu in (1, 0))
    assert idle_s == total_s
    assert busy_idle_s == 0
    assert allowed_times(Tree(tmp_path), {7}) is None


def test_a_gpu_without_sensors_leaves_its_reason(no_nvml: None) -> None:
    watch = Watch(DeviceFacts(kind="cuda", uuid="GPU-x"))
    level, message = judged([watch.sample(), watch.sample()])["throttled"]
    assert level == "unknown"
    assert "nvidia-ml-py" in message


def test_recorded_cpu_clocks(machine: Callable[[str], Path]) -> None:
    sample = Watch(DeviceFacts(kind="cpu"), machine("x86_two_sockets")).sample()
    assert sample.cpu_clock_mhz == 1995
    assert sample.cpu_throttle_events == 12  # of the four CPUs that are allowed


def burn(seconds: float) -> None:
    """Of CPU time: on a shared machine a second may hold little of it."""
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def test_our_own_work_is_not_foreign() -> None:
    """A child that burns a core, alive or ended, is ours: what is left over does not grow by it."""
    watch = Watch(DeviceFacts(kind="cpu"))
    before = watch.sample()
    child = multiprocessing.get_context("fork").Process(target=burn, args=(1.0,))
    child.start()
    child.join()
    after = watch.sample()
    assert after.cpu_own_s - before.cpu_own_s > 0.5


def test_own_tree_follows_children_and_survives_a_circle() -> None:
    processes = {pid: Process(pid, parent, "x", 0) for pid, parent in ((1, 0), (2, 1), (3, 2), (4, 1), (8, 9), (9, 8))}
    assert own_tree(processes, {2}) == {2, 3}
    assert own_tree(processes, {8}) == {8, 9}
