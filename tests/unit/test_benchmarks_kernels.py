"""If this fails, nobody can see where the time of a step goes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_step_is_told_by_part_and_by_kernel(tmp_path: Path) -> None:
    words = [
        "wideresnet",
        "size=tiny",
        "device=cpu",
        "batch_size=2",
        "--parts",
        "conv,bn",
        "--steps",
        "2",
        "--rows",
        "3",
    ]
    script, out = ROOT / "benchmarks" / "kernels.py", tmp_path / "profile.txt"
    subprocess.run([sys.executable, script, *words, "--out", out], check=True, capture_output=True)
    first, rate, *rest = out.read_text().splitlines()
    assert first.startswith("wideresnet size=tiny device=cpu batch_size=2: batch 2, torch ")
    assert "samples/s" in rate
    assert [line.split(":")[0] for line in rest[:2]] == ["forward conv", "forward bn"]
    assert rest[2].startswith("busy for ")
    assert len(rest) == 6
    shares = [float(line.split()[2].rstrip("%")) for line in rest[3:]]
    assert shares == sorted(shares, reverse=True)
    assert 0 < sum(shares) <= 100


def test_a_wrong_word_is_refused_with_the_nearest_right_one() -> None:
    script = ROOT / "benchmarks" / "kernels.py"
    done = subprocess.run([sys.executable, script, "wideresnett"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "kernels.py: unknown workload 'wideresnett'; did you mean 'wideresnet'?\n"
