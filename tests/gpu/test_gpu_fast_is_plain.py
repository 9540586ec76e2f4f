"""Correctness is not traded: all of preset=fast on a device, compiled and captured, has the losses of preset=plain.

Both in bf16, at tiny size. `pytest --gpu tests/gpu/test_gpu_fast_is_plain.py --keep-losses results/h200/fast-is-plain`
keeps the losses of each workload there, a JSON file each.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from loss_curve import ROUNDING, TRAINED, allowed, distance, losses, make_step

pytestmark = pytest.mark.gpu


@pytest.fixture
def torchs_own_chance() -> Iterator[None]:
    """Compiled code draws random numbers of its own; with torch's, both presets drop the same."""
    from torch._inductor import config

    before, config.fallback_random = config.fallback_random, True
    torch.compiler.reset()
    yield
    config.fallback_random = before


@pytest.mark.timeout(900)
@pytest.mark.usefixtures("torchs_own_chance")
@pytest.mark.parametrize("name", TRAINED)
def test_fast_has_the_losses_of_plain(device: torch.device, name: str, request: pytest.FixtureRequest) -> None:
    plain = losses(make_step(name, device, preset="plain", precision="bf16"))
    nudged = losses(make_step(name, device, nudge=ROUNDING, preset="plain", precision="bf16"))
    step = make_step(name, device, preset="fast", precision="bf16")
    fast = losses(step)
    row = {"distance": distance(fast, plain), "allowed": allowed(nudged, plain)}
    kept = request.config.getoption("--keep-losses")
    if kept:
        curves = {"plain": plain, "fast": fast, "plain, weights moved by a rounding": nudged}
        keep(Path(kept), name, {**row, "settings": step.settings, **curves})
    assert row["distance"] < row["allowed"]


def keep(folder: Path, name: str, row: dict[str, object]) -> None:
    """A file a workload, so that several processes may share them out."""
    document = {"workload": name, "torch": torch.__version__, "device": torch.cuda.get_device_name(), **row}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(document, indent=1) + "\n")
