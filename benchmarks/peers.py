"""What other people's code does with the same work: the plain loop, timm's and transformers' own training steps.

    python benchmarks/peers.py [--only WORD] [--seconds 2.5] [--json FILE] [--channels-last] [--tiny]

Data on the device, in bf16 autocast, each eager and under torch.compile. A peer keeps its own defaults:

- timm, as its train.py: create_model, label smoothing of 0.1, create_optimizer_v2 with sgd, momentum 0.9 and its weight
  decay, the autotuner of convolutions on, contiguous images (--channels-last is the script's own option), no clipping.
  Inference as its benchmark.py: eval, no gradients, autocast.
- transformers, as its Trainer: the model's own loss with an attention mask, fused AdamW, gradients clipped to norm 1.

Prony's figures beside them are taken in the same job: `prony run WORKLOAD batch_size=N`. A loop that FILE holds already
is passed over, so that the same command goes on where the last one ended.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from plain import POOL, measured_rates, plain_rate, refuse, said_of, tiny_settings
from prony_node.contract.files import write_whole

CLIP_NORM = 1.0
SMOOTHING, DECAY, RATE = 0.1, 2e-5, 0.05
TINY_TIMM = {"resnet": "test_resnet", "vit": "test_vit", "swin": "test_vit2", "efficientnet": "test_efficientnet",
             "mobilenetv3": "test_efficientnet"}  # fmt: skip
TINY_BERT = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 128}


@dataclass(frozen=True)
class Work:
    """One row: a workload of Prony, and the name under which a peer has it."""

    name: str
    mode: str
    batch_size: int
    timm: str = ""
    transformers: bool = False
    settings: dict[str, object] = field(default_factory=dict)  # of the plain loop

    def __str__(self) -> str:
        return f"{self.name} {self.mode} batch {self.batch_size}"


WORK = (
    Work("resnet50", "train", 512, "resnet50"),
    Work("resnet50", "infer", 256, "resnet50"),
    Work("vit-l", "train", 128, "vit_large_patch16_224"),
    Work("swin-t", "train", 256, "swin_tiny_patch4_window7_224"),
    Work("swin-b", "train", 128, "swin_base_patch4_window7_224"),
    Work("efficientnet-b0", "train", 512, "efficientnet_b0"),
    Work("mobilenetv3-large", "train", 1024, "mobilenetv3_large_100"),
    Work("resnet152", "train", 256, "resnet152"),
    Work("bert-base-squad", "train", 128, transformers=True),
    Work("wideresnet", "train", 32),
    Work("wideresnet", "train", 1024),
    Work("gpt-800m", "train", 16),
    Work("gpt-117m", "infer", 1, settings={"phase": "decode"}),
)


def timm_rates(work: Work, compiled: bool, options: argparse.Namespace, device: torch.device) -> list[float]:
    """timm's own training or inference step."""
    import timm
    from timm.loss import LabelSmoothingCrossEntropy
    from timm.optim import create_optimizer_v2

    torch.backends.cudnn.benchmark = True
    name = next(tiny for word, tiny in TINY_TIMM.items() if work.timm.startswith(word)) if options.tiny else work.timm
    model = timm.create_model(name).to(device)
    layout = torch.channels_last if options.channels_last else torch.contiguous_format
    model.to(memory_format=layout)
    shape = (work.batch_size, *model.default_cfg["input_size"])
    images = [torch.randn(shape, device=device).to(memory_format=layout) for _ in range(POOL)]
    labels = torch.randint(model.num_classes, (POOL, work.batch_size), device=device)
    pool = list(zip(images, labels, strict=True))
    model.train(work.mode == "train")
    call = torch.compile(model) if compiled else model

    def infer(batch) -> None:
        with torch.inference_mode(), torch.autocast(device.type, torch.bfloat16):
            call(batch[0])

    if work.mode == "infer":
        return measured_rates(infer, pool, work.batch_size, options.seconds, device)
    optimizer = create_optimizer_v2(model, opt="sgd", lr=RATE, weight_decay=DECAY, momentum=0.9)
    judge = LabelSmoothingCrossEntropy(SMOOTHING)

    def train(batch) -> None:
        with torch.autocast(device.type, torch.bfloat16):
            loss = judge(call(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return measured_rates(train, pool, work.batch_size, options.seconds, device)


def transformers_rates(work: Work, compiled: bool, options: argparse.Namespace, device: torch.device) -> list[float]:
    """A step of BERT's fine-tuning as transformers' Trainer takes it."""
    from transformers import BertConfig, BertForQuestionAnswering

    sequence = 32 if options.tiny else 384
    config = BertConfig(**(TINY_BERT if options.tiny else {}))
    model: nn.Module = BertForQuestionAnswering(config).to(device).train()
    size = (work.batch_size, sequence)

    def batch() -> dict[str, torch.Tensor]:
        places = torch.randint(sequence, (2, work.batch_size), device=device)
        return {
            "input_ids": torch.randint(config.vocab_size, size, device=device),
            "token_type_ids": torch.randint(2, size, device=device),
            "attention_mask": torch.ones(size, dtype=torch.int64, device=device),
            "start_positions": places[0],
            "end_positions": places[1],
        }

    call = torch.compile(model) if compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5, weight_decay=0.0, fused=True)

    def train(inputs: dict[str, torch.Tensor]) -> None:
        with torch.autocast(device.type, torch.bfloat16):
            loss = call(**inputs).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
        optimizer.step()
        model.zero_grad()

    return measured_rates(train, [batch() for _ in range(POOL)], work.batch_size, options.seconds, device)


def loops(work: Work, options: argparse.Namespace, device: torch.device) -> Iterator[tuple[str, Callable]]:
    """Who runs a row, by name, and what measures it."""

    def plain() -> list[float]:
        more = {**work.settings, **(tiny_settings(work.name) if options.tiny else {})}
        return plain_rate(work.name, work.batch_size, work.mode, options.seconds, device, **more)["rates"]

    yield "plain eager", plain
    peers = {"timm": timm_rates} if work.timm else {"transformers": transformers_rates} if work.transformers else {}
    for peer, rates in peers.items():
        for form in ("eager", "compiled"):
            yield f"{peer} {form}", lambda rates=rates, form=form: rates(work, form == "compiled", options, device)


def measured(work: Work, peer: str, rates: Callable[[], list[float]]) -> dict[str, object]:
    """A row of the result; one that fails says why, and does not end the others."""
    unit = {"bert-base-squad": "sequences/s", "gpt-117m": "tokens/s", "gpt-800m": "tokens/s"}.get(work.name, "images/s")
    row = {"workload": work.name, "mode": work.mode, "batch_size": work.batch_size, "peer": peer, "unit": unit}
    try:
        row["rates"] = rates()
        print(f"{work}, {peer}: {max(row['rates']):,.1f} {unit}", flush=True)
    except Exception as error:
        row |= {"rates": None, "reason": said_of(error)}
        print(f"{work}, {peer}: failed, {row['reason']}", flush=True)
    return row


def versions() -> dict[str, str | None]:
    from importlib import metadata

    found: dict[str, str | None] = {}
    for library in ("torch", "timm", "transformers"):
        try:
            found[library] = metadata.version(library)
        except metadata.PackageNotFoundError:
            found[library] = None
    return found


def loops_of(path: Path | None, about: dict[str, object]) -> list[dict[str, Any]]:
    """What the file holds already; what failed is tried again. Of another machine it is not ours to go on with."""
    if path is None or not path.exists():
        return []
    held = json.loads(path.read_text())
    loops = held.pop("loops")
    if held != about:
        raise ValueError(f"{path} is of {held}, and this is {about}: give another file")
    return [loop for loop in loops if loop["rates"]]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", help="loops with this in their name, such as 'timm eager' or vit-l")
    parser.add_argument("--seconds", type=float, default=2.5, help="of each of two segments")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--channels-last", action="store_true", help="timm's own option of that name")
    parser.add_argument("--tiny", action="store_true", help="small models in batches of 2, to try the script on a CPU")
    options = parser.parse_args(arguments)
    if not torch.accelerator.is_available() and not options.tiny:
        return refuse("this needs an accelerator: on a CPU these models take minutes a step; --tiny tries the script")
    kind = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    device = torch.device(kind.type, 0) if kind else torch.device("cpu")
    name = torch.get_device_module(device).get_device_name(device) if kind else "cpu"
    uuid = str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else None
    about = {**versions(), "device": name, "uuid": uuid, "channels_last": options.channels_last, "tiny": options.tiny}
    rows = [replace(work, batch_size=min(2, work.batch_size)) if options.tiny else work for work in WORK]
    every = [(work, peer, rates) for work in rows for peer, rates in loops(work, options, device)]
    chosen = [one for one in every if any(word in f"{one[0]}, {one[1]}" for word in options.only or [""])]
    if not chosen:
        names = "\n  ".join(f"{work}, {peer}" for work, peer, _ in every)
        return refuse(f"no loop has {' or '.join(options.only)} in its name:\n  {names}")
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
    try:
        found = loops_of(options.json, about)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return refuse(f"{options.json} cannot be gone on with: {error}")
    there = {(loop["workload"], loop["mode"], loop["batch_size"], loop["peer"]) for loop in found}
    for work, peer, rates in chosen:
        if (work.name, work.mode, work.batch_size, peer) in there:
            print(f"{work}, {peer}: in {options.json} already", flush=True)
            continue
        found.append(measured(work, peer, rates))
        if options.json:  # after each: what was measured must outlast a time limit
            write_whole(options.json, {**about, "loops": found})
        torch.backends.cudnn.benchmark = False  # as torch has it: the next loop may be another's
        torch.compiler.reset()
        gc.collect()
        if kind:
            torch.get_device_module(device).empty_cache()
    return 0


if __name__ == "__main__":
    sys.exit(main())
