"""Do counter and integral agree? Known loads on an accelerator, through the shipped sampler and figures.

    python benchmarks/energy.py [--out DIR] [--seed 1] [--waves 8] [--markdown FILE]

A steady load, square waves of random periods from 50 ms to 3 s, a wave whose period changes all the time, and a real
training run. For each: the energy from the counter between its ticks and the driver's power samples integrated between
the same two instants. The gate: they agree within the printed uncertainty in every case, and the uncertainty of the
steady 10 s is at most 1.5 %. The traces are kept in DIR, for replay. Exits with 1 when the gate is missed.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from prony_node.backends.torch.backend import choose_device, machine_of
from prony_node.backends.torch.step import Step
from prony_node.contract import files
from prony_node.power.figures import PartEnergy, part_energies
from prony_node.power.recording import SamplerProcess, read_recording
from prony_node.workloads import build_task, find_workload

STEADY_S, WAVE_S, MIXED_S, TRAINING_S, IDLE_S = 10.4, 6.0, 12.0, 11.0, 3.0
SHORTEST_PERIOD_S, LONGEST_PERIOD_S = 0.05, 3.0
WORST_STEADY = 0.015


def matrix_load(device: torch.device) -> Callable[[float], None]:
    """Keep the device busy for about so many seconds; returns when it is idle again."""
    size = 8192 if device.type != "cpu" else 512
    one = torch.randn(size, size, device=device, dtype=torch.bfloat16)
    two, out = torch.randn_like(one), torch.empty_like(one)

    def multiply(count: int) -> None:
        for _ in range(count):
            torch.mm(one, two, out=out)
        torch.accelerator.synchronize()

    multiply(20)
    started = time.perf_counter()
    multiply(50)
    one_s = (time.perf_counter() - started) / 50

    def busy(seconds: float) -> None:
        end_s = time.monotonic() + seconds
        while (left_s := end_s - time.monotonic()) > 0.5 * one_s:
            multiply(max(1, min(8, int(left_s / one_s))))

    return busy


def square_wave(busy: Callable[[float], None], seconds: float, period: Callable[[], float]) -> None:
    """Half of each period at full load, half of it idle."""
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        period_s = period()
        busy(0.5 * period_s)
        time.sleep(0.5 * period_s)


def training(device: torch.device) -> Callable[[float], None]:
    """Real steps of wideresnet, as a run makes them."""
    workload = find_workload("wideresnet")
    settings = workload.effective({"batch_size": 256, "compile": "off"}, machine_of(device, 4))
    task = build_task(workload, settings)
    step = Step(task, settings, device)
    step.finish_model()
    batch = step.place(task.sample(torch.Generator(device).manual_seed(1), 256))
    step.prepare(batch)

    def train(seconds: float) -> None:
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            for _ in range(20):
                step(batch)
            torch.accelerator.synchronize()

    return train


def segments(device: torch.device, waves: int, rng: random.Random) -> list[tuple[str, Callable[[], None]]]:
    busy, train = matrix_load(device), training(device)
    found: list[tuple[str, Callable[[], None]]] = [
        ("idle", lambda: time.sleep(IDLE_S)),
        ("steady load", lambda: busy(STEADY_S)),
    ]
    low, high = SHORTEST_PERIOD_S, LONGEST_PERIOD_S
    for _ in range(waves):
        period_s = low * (high / low) ** rng.random()  # as many short ones as long ones

        def wave(period_s: float = period_s) -> None:
            square_wave(busy, max(WAVE_S, 3 * period_s), lambda: period_s)

        found.append((f"square wave of {1e3 * period_s:.0f} ms", wave))
    found.append(("square wave, period changing", lambda: square_wave(busy, MIXED_S, lambda: rng.uniform(low, high))))
    found.append(("training wideresnet, batch 256", lambda: train(TRAINING_S)))
    return found


def row(name: str, part: PartEnergy) -> tuple[list[str], bool]:
    """A line of the table, and whether it holds."""
    figure, beside = part.figure, part.beside
    if figure is None or beside is None or part.difference is None or part.allowed is None:
        return [name, "", "", "", "", "", f"no figure: {part.reason or 'nothing beside it'}"], False
    agree = abs(part.difference) <= part.allowed
    sure = name != "steady load" or figure.relative_uncertainty <= WORST_STEADY
    verdict = ("agree" if agree else "**apart**") + ("" if sure else ", **unsure**")
    return [
        name, f"{figure.seconds:.2f}", f"{figure.readings}", f"{figure.power_w:.1f}",
        f"{100 * figure.relative_uncertainty:.2f}",
        f"{100 * part.difference:+.2f} ({100 * part.allowed:.2f}, {beside.sensor.id.partition(' ')[0]})", verdict,
    ], agree and sure  # fmt: skip


HEADER = ["load", "s", "ticks", "W", "counter ± %", "integral off by % (allowed, sensor)", "verdict"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="keep the traces here")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--waves", type=int, default=8)
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    device = choose_device("auto")
    if device.type == "cpu":
        print("this needs an accelerator with a power sensor", file=sys.stderr)
        return 2
    folder = options.out or Path(tempfile.mkdtemp())
    loads = segments(device, options.waves, random.Random(options.seed))
    sampler = SamplerProcess(folder)
    sampler.wait_ready()
    spans = []
    for name, load in loads:
        started_s = time.monotonic()
        load()
        spans.append((name, started_s, time.monotonic()))
        print(f"{name}: {spans[-1][2] - started_s:.1f} s", file=sys.stderr, flush=True)
    time.sleep(1.5)  # a one-second average lags behind
    sampler.end()
    recording = read_recording(folder)
    assert recording is not None
    found = []
    for name, started_s, ended_s in spans:
        gpus = [part for part in part_energies(recording, started_s, ended_s) if part.scope == "gpu"]
        found += [row(name, part) for part in gpus] or [([name, *[""] * 5, "no sensor"], False)]
    lines = ["| " + " | ".join(line) + " |" for line in (HEADER, ["---"] * len(HEADER), *(line for line, _ in found))]
    print("\n".join(lines))
    if options.markdown:
        options.markdown.write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "loads.json").write_text(json.dumps(spans, indent=1) + "\n", encoding="utf-8")
    samples = folder / files.POWER_SAMPLES
    with gzip.open(samples.with_name(samples.name + ".gz"), "wb", 9) as packed:
        packed.write(samples.read_bytes())
    samples.unlink()
    missed = [line[0] for line, good in found if not good and line[0] != "idle"]
    print(f"{len(found)} loads, {len(missed)} miss: {', '.join(missed) or 'none'}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
