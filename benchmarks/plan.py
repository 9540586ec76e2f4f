"""How long a plan of many trials takes: read, expanded, checked, ordered and estimated.

python benchmarks/plan.py [TRIALS]
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from pathlib import Path

from prony.engine.forecast import make_forecast
from prony.engine.progress import silent
from prony.study.study_file import StudyFileOptions, parse_study
from prony_node.workloads import find_workload

STUDY = """
name: many
workloads: [resnet50, vit-l]
settings:
  data: host
  precision: [bf16, fp16, fp32, tf32]
  batch_size: 8..1024
  workers: 0:9
  seed: 1:{seeds}
derive:
  grad_accumulation: {{value: 1024 // batch_size, when: batch_size > 8}}
exclude: workers == 9 and precision == tf32
"""
OF_A_SEED = 2 * (4 * 10 - 1) * 8


def main(trials: int = 100_000) -> None:
    text = STUDY.format(seeds=max(1, round(trials / OF_A_SEED)))
    with tempfile.TemporaryDirectory() as root:
        begun_s, begun_cpu_s = time.perf_counter(), time.process_time()
        study = parse_study(text, "many.yaml", StudyFileOptions(None), find_workload)
        forecast = make_forecast(study, Path(root), silent)
        took_s, cpu_s = time.perf_counter() - begun_s, time.process_time() - begun_cpu_s
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{len(forecast.planned):,} trials planned in {took_s:.2f} s ({cpu_s:.2f} s of CPU time), {peak_mib:,.0f} MiB"
    )


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:]))
