"""What a loss in parts saves and costs: the last layer and its loss with all logits at once, and some at a time.

    python benchmarks/logits.py [--tokens N] [--hidden N] [--vocabulary N] [--rounds 5] [--json FILE] [--tiny]

Forward and backward under bf16 autocast, both compiled as in a step, in turns. The defaults are those of gpt-800m with
32 sequences, twice its default batch. Memory is what torch's allocator held at most beyond weights and states.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from asked import device_name
from plain import refuse
from prony_node.contract.files import write_whole
from prony_node.workloads.language import chunked_loss, widened

TINY = {"tokens": 64, "hidden": 16, "vocabulary": 100}
Loss = Callable[[Tensor, Tensor, Tensor], Tensor]


def whole_loss(states: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """As the model takes it where logits are not large."""
    return F.cross_entropy(widened(F.linear(states, weight).flatten(0, 1)), targets.flatten())


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=65_536)
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--vocabulary", type=int, default=50_304)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--tiny", action="store_true", help="small and eager, to try the script on a CPU")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available() and not options.tiny:
        return refuse("this needs a CUDA device; --tiny tries the script")
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    shape = TINY if options.tiny else {name: getattr(options, name) for name in TINY}
    forms: dict[str, Loss] = {"whole": whole_loss, "in parts": chunked_loss}
    if not options.tiny:
        forms = {name: torch.compile(form, dynamic=False) for name, form in forms.items()}
    given = made(shape, device)
    found: dict[str, list[dict[str, float | None]]] = {name: [] for name in forms}
    for number in range(1 + options.rounds):  # the first compiles
        for name, form in forms.items():
            once = measured(form, given, device)
            if number:
                found[name].append(once)
    for name, rounds in found.items():
        print(f"{name}: {told(rounds)}")
    if options.json:
        write_whole(options.json, {"device": device_name(device), "torch": torch.__version__, **shape, "forms": found})
    return 0


def told(rounds: list[dict[str, float | None]]) -> str:
    took = sorted(1e3 * float(one["seconds"] or 0.0) for one in rounds)
    held = [one["bytes"] / 2**30 for one in rounds if one["bytes"] is not None]
    memory = f", {max(held):.2f} GiB" if held else ""
    return f"{statistics.median(took):.2f} ms ({took[0]:.2f} to {took[-1]:.2f}){memory}, loss {rounds[-1]['loss']:.4f}"


def made(shape: dict[str, int], device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    chance = torch.Generator(device).manual_seed(0)
    states = torch.randn(1, shape["tokens"], shape["hidden"], device=device, dtype=torch.bfloat16, generator=chance)
    weight = 0.02 * torch.randn(shape["vocabulary"], shape["hidden"], device=device, generator=chance)
    targets = torch.randint(shape["vocabulary"], (1, shape["tokens"]), device=device, generator=chance)
    return states.requires_grad_(), weight.requires_grad_(), targets


def measured(form: Loss, given: tuple[Tensor, Tensor, Tensor], device: torch.device) -> dict[str, float | None]:
    on_cuda = device.type == "cuda"
    for one in given[:2]:
        one.grad = None
    if on_cuda:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated() if on_cuda else 0
    began = time.perf_counter()
    with torch.autocast(device.type, torch.bfloat16, cache_enabled=False):
        loss = form(*given)
    loss.backward()
    if on_cuda:
        torch.cuda.synchronize()
    seconds = time.perf_counter() - began
    held = torch.cuda.max_memory_allocated() - before if on_cuda else None
    return {"seconds": seconds, "bytes": held, "loss": float(loss.detach())}


if __name__ == "__main__":
    sys.exit(main())
