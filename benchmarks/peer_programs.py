"""Other people's own programs over the work of headline rows: timm's benchmark.py, nanoGPT's bench.py, and
transformers' Trainer.

    python benchmarks/peer_programs.py PEERS.jsonl [--timm FOLDER] [--nanogpt FOLDER] [--trainer] [--only WORD]

FOLDER is a clone, or a copy of its files; --timm-commit and --nanogpt-commit name the commit where it is no clone. The
programs run as they were published, each in a process of its own, with the options that stand in the line. A line is
added for each that ran, as scripts/headline_table.py reads them. Run it in the job of the rows: before or between their
runs, never beside one. The Trainer needs the package accelerate. Exit 1: a program failed.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

from headline_table import Peer

# The options of benchmark.py, and the trial of Prony with the same work.
TIMM = (
    ("resnet50", "train", 512, "resnet50 batch_size=512"),
    ("resnet50", "inference", 256, "resnet50 mode=infer batch_size=256"),
    ("vit_large_patch16_224", "train", 128, "vit-l batch_size=128"),
    ("swin_tiny_patch4_window7_224", "train", 256, "swin-t batch_size=256"),
    ("efficientnet_b0", "train", 512, "efficientnet-b0 batch_size=512"),
    ("mobilenetv3_large_100", "train", 1024, "mobilenetv3-large batch_size=1024"),
)
STEPS_PER_SECOND = {"train": 15, "inference": 60}  # rough, of these rows on an H200: how many steps last --seconds
NANOGPT = "--real_data=False"
NANOGPT_STEPS, NANOGPT_TOKENS = 20, 12 * 1024  # of bench.py
BERT_BATCH, BERT_TOKENS, BERT_VOCABULARY = 128, 384, 30522
TRAINER_FIRST_STEPS = 20  # compiled and warmed up before the clock starts


@dataclass(frozen=True)
class Program:
    """One program with its options, and how it is run and read."""

    name: str
    workload: str
    run: Callable[[], Peer]

    def __str__(self) -> str:
        return f"{self.name}: {self.workload}"


def timm_program(options: argparse.Namespace, model: str, bench: str, batch: int, workload: str) -> Program:
    name = "timm benchmark.py, compiled"

    def run() -> Peer:
        steps = max(10, round(options.seconds * STEPS_PER_SECOND[bench]))
        words = (
            f"--model {model} --bench {bench} -b {batch} --amp --amp-dtype bfloat16 --torchcompile --no-retry".split()
        )
        words += ["--num-bench-iter", str(steps), "--device", options.device]
        said = output_of([sys.executable, "benchmark.py", *words], options.timm)
        found = json.loads(said.partition("--result")[2])
        prefix = "train" if bench == "train" else "infer"
        rate, step_s = float(found[f"{prefix}_samples_per_sec"]), found[f"{prefix}_step_time"] / 1e3
        version = f"{metadata.version('timm')}, script of {commit_of(options.timm, options.timm_commit)}"
        return make_peer(name, version, workload, " ".join(words), rate, "images/s", steps * step_s, options)

    return Program(name, workload, run)


def nanogpt_program(options: argparse.Namespace) -> Program:
    name, workload = "nanoGPT bench.py", "gpt-117m batch_size=12"

    def run() -> Peer:
        said = output_of([sys.executable, "bench.py", NANOGPT, f"--device={options.device}"], options.nanogpt)
        match = re.search(r"time per iteration: ([0-9.]+)ms", said)
        if match is None:
            raise ValueError("bench.py printed no time per iteration")
        step_s = float(match.group(1)) / 1e3
        version = f"commit {commit_of(options.nanogpt, options.nanogpt_commit)}"
        return make_peer(name, version, workload, NANOGPT, NANOGPT_TOKENS / step_s, "tokens/s",
                         NANOGPT_STEPS * step_s, options)  # fmt: skip

    return Program(name, workload, run)


def trainer_program(options: argparse.Namespace) -> Program:
    name, workload = "transformers Trainer, compiled", "bert-base-squad batch_size=128"

    def run() -> Peer:
        argv = [sys.executable, __file__, "-", "--train", "--seconds", str(options.seconds), "--device", options.device]
        found = json.loads(output_of([*argv, *(["--tiny"] if options.tiny else [])], Path.cwd()).splitlines()[-1])
        version = f"{metadata.version('transformers')}, accelerate {metadata.version('accelerate')}"
        return make_peer(name, version, workload, str(found["settings"]), float(found["rate"]), "sequences/s",
                         float(found["seconds"]), options)  # fmt: skip

    return Program(name, workload, run)


def train(options: argparse.Namespace) -> None:
    """BERT's fine-tuning by transformers' Trainer over random tokens; prints sequences per second."""
    import tempfile

    import torch
    from transformers import BertConfig, BertForQuestionAnswering, Trainer, TrainerCallback, TrainingArguments

    batch, tokens = (2, 32) if options.tiny else (BERT_BATCH, BERT_TOKENS)
    small = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 128}
    on_device = options.device != "cpu"

    class Questions(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 10_000_000

        def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
            return {"input_ids": words, "attention_mask": ones, "token_type_ids": ones - 1,
                    "start_positions": place, "end_positions": place}  # fmt: skip

    class Clock(TrainerCallback):
        """Starts after the first steps, and ends the training when its time is over."""

        def on_step_end(self, arguments: object, state: object, control: object, **_: object) -> None:
            if state.global_step == TRAINER_FIRST_STEPS:
                self.began_s = synchronised_s()
            elif state.global_step > TRAINER_FIRST_STEPS and time.perf_counter() - self.began_s > options.seconds:
                self.seconds = synchronised_s() - self.began_s
                self.steps = state.global_step - TRAINER_FIRST_STEPS
                control.should_training_stop = True

    def synchronised_s() -> float:
        if on_device:
            torch.accelerator.synchronize()
        return time.perf_counter()

    words, ones = torch.randint(BERT_VOCABULARY, (tokens,)), torch.ones(tokens, dtype=torch.int64)
    place, clock = torch.tensor(3), Clock()
    given = {"per_device_train_batch_size": batch, "bf16": on_device, "torch_compile": on_device, "max_grad_norm": 1.0}
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, **given, use_cpu=not on_device, max_steps=10_000_000, logging_strategy="no", save_strategy="no",
            report_to=[], disable_tqdm=True, dataloader_num_workers=0 if options.tiny else 8,
        )  # fmt: skip
        model = BertForQuestionAnswering(BertConfig(**(small if options.tiny else {})))
        Trainer(model, arguments, train_dataset=Questions(), callbacks=[clock]).train()
    settings = " ".join(f"{key}={value}" for key, value in given.items())
    print(json.dumps({"rate": clock.steps * batch / clock.seconds, "seconds": clock.seconds, "settings": settings}))


def make_peer(
    name: str, version: str, workload: str, settings: str, rate: float, unit: str, seconds: float,
    options: argparse.Namespace,
) -> Peer:  # fmt: skip
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return Peer(name, version, workload, settings, rate, unit, seconds, now, device_id(options.device))


def device_id(device: str) -> str | None:
    """The UUID of the first device, as a record has it; None where there is no such device."""
    if device == "cpu":
        return None
    argv = ["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"]
    try:
        return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        return None


def output_of(argv: list[str], folder: Path) -> str:
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, errors="replace")
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip() or "it said nothing").splitlines()[-1]
        raise ValueError(f"exit {done.returncode}: {last}")
    return done.stdout


def commit_of(folder: Path, given: str | None) -> str:
    if given:
        return given
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise ValueError(f"{folder} is no clone: name its commit")
    return done.stdout.strip()


def programs(options: argparse.Namespace) -> Iterator[Program]:
    if options.timm:
        for model, bench, batch, workload in TIMM:
            yield timm_program(options, model, bench, batch, workload)
    if options.nanogpt:
        yield nanogpt_program(options)
    if options.trainer:
        yield trainer_program(options)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, metavar="PEERS.jsonl")
    parser.add_argument("--timm", type=Path, metavar="FOLDER", help="with benchmark.py of pytorch-image-models")
    parser.add_argument("--timm-commit")
    parser.add_argument("--nanogpt", type=Path, metavar="FOLDER", help="with bench.py of nanoGPT")
    parser.add_argument("--nanogpt-commit")
    parser.add_argument("--trainer", action="store_true", help="transformers' Trainer")
    parser.add_argument("--only", action="append", help="programs with this in their name or work")
    parser.add_argument("--seconds", type=float, default=20.0, help="to measure, where a program can be told")
    parser.add_argument("--device", default="cuda")
    parser.add_argument(
        "--tiny", action="store_true", help="the Trainer with a small model, to try the script on a CPU"
    )
    parser.add_argument("--train", action="store_true", help=argparse.SUPPRESS)  # the process of the Trainer
    options = parser.parse_args(arguments)
    if options.train:
        train(options)
        return 0
    chosen = [one for one in programs(options) if any(word in str(one) for word in options.only or [""])]
    if not chosen:
        print("peer_programs.py: no program is chosen; see --help", file=sys.stderr)
        return 2
    failed = 0
    for program in chosen:
        try:
            peer = program.run()
        except (ValueError, KeyError, IndexError, OSError, metadata.PackageNotFoundError) as error:
            failed += 1
            print(f"{program}: failed: {error}", flush=True)
            continue
        options.out.parent.mkdir(parents=True, exist_ok=True)
        with options.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(peer)) + "\n")
        print(f"{program}: {peer.rate:,.0f} {peer.unit} over {peer.seconds:.0f} s", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
