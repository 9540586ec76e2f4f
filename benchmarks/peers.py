"""What other people's programs reach with the same model, unchanged and in the same job as Prony's runs.

    python benchmarks/peers.py OUT.jsonl --timm FOLDER --nanogpt FOLDER [--repeats 3] [--only WORD] [--prepare] [--tiny]

- timm: `benchmark.py` of its repository, in bf16 autocast and channels-last, eager and compiled.
- transformers: a script around its Trainer (benchmarks/peer_trainer.py), compiled.
- nanoGPT: `bench.py` of its repository, with its fixed batch in place of its data set.

FOLDER is a checkout; its commit goes into the row. A row is one line of JSON, written when its program has ended, so
that a time limit loses only what was running. Each program runs --repeats times, in rounds, so that a time limit leaves
as many repeats of each as possible. scripts/headline_table.py reads the rows: mean and 95 % CI between repeats, and a
ratio where a program measured for 5 s or more. --prepare runs each program for a
few steps and writes nothing: it fills the compiler's cache.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

HERE = Path(__file__).parent
LIMIT_S = 400


@dataclass(frozen=True)
class Figure:
    """What a program said of itself."""

    rate: float
    seconds: float


@dataclass(frozen=True)
class Peer:
    """One program with its arguments, and how to read what it prints."""

    name: str
    trial: str  # of Prony, with the same work, in the words of `prony run`
    unit: str
    command: list[str]
    short: list[str]  # the same, for a few steps
    folder: Path
    version: str
    read: Callable[[str], Figure]

    def __str__(self) -> str:
        return f"{self.name}: {self.trial}"


@dataclass(frozen=True)
class Row:
    """A line of the result."""

    name: str
    version: str
    workload: str
    settings: str
    rate: float
    unit: str
    seconds: float
    date: str
    device: str | None


@dataclass(frozen=True)
class TimmRow:
    """A model under both names, and a window of about 20 s on an H200."""

    workload: str
    model: str
    mode: str
    batch_size: int
    steps: int

    @property
    def trial(self) -> str:
        mode = " mode=infer" if self.mode == "infer" else ""
        return f"{self.workload}{mode} batch_size={self.batch_size}"


TIMM = (
    TimmRow("resnet50", "resnet50", "train", 512, 170),
    TimmRow("resnet50", "resnet50", "infer", 256, 1200),
    TimmRow("vit-l", "vit_large_patch16_224", "train", 128, 160),
    TimmRow("swin-t", "swin_tiny_patch4_window7_224", "train", 256, 250),
    TimmRow("efficientnet-b0", "efficientnet_b0", "train", 512, 250),
    TimmRow("mobilenetv3-large", "mobilenetv3_large_100", "train", 1024, 220),
)
TINY_MODEL = "test_resnet"


def timm_peers(folder: Path, tiny: bool) -> list[Peer]:
    version = f"timm {commit_of(folder)}"
    rows = (TimmRow("resnet50", TINY_MODEL, "train", 2, 5), TimmRow("resnet50", TINY_MODEL, "infer", 2, 5))
    found = []
    for row in rows if tiny else TIMM:
        size = [] if tiny else ["--amp", "--amp-dtype", "bfloat16"]
        start = [sys.executable, "benchmark.py", "--model", row.model, "--bench", row.mode, "--no-retry",
                 "--batch-size", str(row.batch_size), "--channels-last", *size]  # fmt: skip
        start += ["--device", "cpu"] if tiny else []
        for form, more in (("eager", []), ("compiled", ["--torchcompile"])):
            found.append(
                Peer(
                    name=f"timm benchmark.py, {form}",
                    trial=row.trial,
                    unit="images/s",
                    command=[*start, *more, "--num-bench-iter", str(row.steps)],
                    short=[*start, *more, "--num-warm-iter", "2", "--num-bench-iter", "5"],
                    folder=folder,
                    version=version,
                    read=timm_reader(row),
                )
            )
    return found


def timm_reader(row: TimmRow) -> Callable[[str], Figure]:
    def read(printed: str) -> Figure:
        found = json.loads(printed.partition("--result")[2])
        if "error" in found:
            raise ValueError(found["error"])
        rate = float(found[f"{row.mode}_samples_per_sec"])
        return Figure(rate, row.steps * row.batch_size / rate)

    return read


def trainer_peers(tiny: bool) -> list[Peer]:
    batch_size, steps = (2, 2) if tiny else (128, 250)
    start = [sys.executable, "peer_trainer.py", "--batch-size", str(batch_size)]
    start += ["--tiny"] if tiny else ["--compile"]

    def read(printed: str) -> Figure:
        return Figure(**json.loads(printed.splitlines()[-1]))

    return [
        Peer(
            name="transformers Trainer",
            trial=f"bert-base-squad batch_size={batch_size}",
            unit="sequences/s",
            command=[*start, "--steps", str(steps), *(["--warm-up", "1"] if tiny else [])],
            short=[*start, "--steps", "2", "--warm-up", "2"],
            folder=HERE,
            version=f"transformers {version_of('transformers')}",
            read=read,
        )
    ]


def nanogpt_peers(folder: Path) -> list[Peer]:
    batch_size, context, steps = 12, 1024, 20  # the script's own

    def read(printed: str) -> Figure:
        found = re.search(r"time per iteration: ([0-9.]+)ms", printed)
        if found is None:
            raise ValueError("bench.py printed no time per iteration")
        step_s = float(found[1]) / 1000
        return Figure(batch_size * context / step_s, steps * step_s)

    command = [sys.executable, "bench.py", "--real_data=False"]
    return [
        Peer(
            name="nanoGPT bench.py",
            trial=f"gpt-117m batch_size={batch_size}",
            unit="tokens/s",
            command=command,
            short=command,
            folder=folder,
            version=f"nanoGPT {commit_of(folder)}",
            read=read,
        )
    ]


def commit_of(folder: Path) -> str:
    """The commit of a checkout, or what the file COMMIT says of a copy without one."""
    noted = folder / "COMMIT"
    if noted.is_file():
        return noted.read_text().strip()[:12]
    done = subprocess.run(["git", "-C", str(folder), "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return done.stdout.strip()[:12] or "of an unknown commit"


def version_of(library: str) -> str:
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return "not installed"


def device_of_this_machine() -> str | None:
    """The device's UUID; None on a CPU."""
    import torch

    return f"GPU-{torch.cuda.get_device_properties(0).uuid}" if torch.cuda.is_available() else None


def run(peer: Peer, device: str | None) -> Row:
    """Start the program and read its figure; a ValueError where there is none."""
    figure = peer.read(started(peer.command, peer.folder))
    return Row(
        name=peer.name,
        version=f"{peer.version}, torch {version_of('torch')}",
        workload=peer.trial,
        settings=" ".join(peer.command[2:]),
        rate=figure.rate,
        unit=peer.unit,
        seconds=figure.seconds,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        device=device,
    )


def started(command: list[str], folder: Path) -> str:
    """What the program prints; a ValueError with its last line if it fails."""
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise ValueError(f"not finished after {LIMIT_S} s") from error
    if done.returncode != 0:
        raise ValueError((done.stderr or done.stdout).strip() or f"exit code {done.returncode}")
    return done.stdout


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="JSON lines; rows are added")
    parser.add_argument("--timm", type=Path, help="a checkout of huggingface/pytorch-image-models")
    parser.add_argument("--nanogpt", type=Path, help="a checkout of karpathy/nanoGPT")
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="runs of each program (default 3)")
    parser.add_argument("--only", action="append", help="programs with this in their name, such as 'resnet50 train'")
    parser.add_argument("--prepare", action="store_true", help="a few steps of each, several at once; writes nothing")
    parser.add_argument("--tiny", action="store_true", help="small models on a CPU, to try the script")
    options = parser.parse_args(arguments)
    every = [
        *(timm_peers(options.timm.resolve(), options.tiny) if options.timm else []),
        *trainer_peers(options.tiny),
        *(nanogpt_peers(options.nanogpt.resolve()) if options.nanogpt else []),
    ]
    if options.repeats < 1:
        parser.error("--repeats takes a number from 1 up")
    chosen = [peer for peer in every if any(word in str(peer) for word in options.only or [""])]
    if not chosen:
        names = "\n  ".join(map(str, every))
        print(f"peers.py: no program has {' or '.join(options.only)} in its name:\n  {names}", file=sys.stderr)
        return 2
    if options.prepare:
        return prepare(chosen)
    device = device_of_this_machine()
    failed = 0
    broken: set[str] = set()
    for number, peer in itertools.product(range(1, options.repeats + 1), chosen):
        if str(peer) in broken:
            continue  # it would fail again, and cost as much
        try:
            row = run(peer, device)
        except (ValueError, KeyError, TypeError) as error:
            failed += 1
            broken.add(str(peer))
            reason = (str(error).strip().splitlines() or [type(error).__name__])[-1]
            print(f"{peer}: failed: {reason}", flush=True)
            continue
        print(f"{peer}, run {number}: {row.rate:,.1f} {row.unit} in {row.seconds:.1f} s", flush=True)
        with options.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(row)) + "\n")
    return 1 if failed else 0


def prepare(peers: list[Peer]) -> int:
    """Start all programs for a few steps, at once."""
    running = [
        (peer, subprocess.Popen(peer.short, cwd=peer.folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        for peer in peers
    ]
    failed = [str(peer) for peer, process in running if process.wait(LIMIT_S)]
    for name in failed:
        print(f"not prepared: {name}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
