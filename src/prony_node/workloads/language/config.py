"""Decoder-only language models: their dimensions, torch-free."""

from __future__ import annotations

from prony_node.contract.settings import Setting
from prony_node.workloads.config import Workload

SEQUENCE = Setting("sequence", "count", "tokens of a sample", least=8)
VOCABULARY = 50304  # GPT-2's 50257 tokens, padded to a multiple of 128 for the matrix units


def gpt_parameters(layers: int, hidden: int, vocabulary: int) -> int:
    """Attention 4 h^2, feed-forward 8 h^2, two norms a layer; one tied embedding; a last norm."""
    return layers * (12 * hidden * hidden + 2 * hidden) + vocabulary * hidden + hidden


def _gpt(name: str, layers: int, hidden: int, heads: int, sequence: int, batch: tuple[int, int],
         memory_gib: float, source: str, vocabulary: int = VOCABULARY) -> Workload:  # fmt: skip
    accelerator, cpu = batch
    return Workload(
        name=name,
        help=f"decoder of {layers} layers, hidden {hidden}, {heads} heads, sequence {sequence}, rotary",
        module="prony_node.workloads.language.gpt",
        unit="tokens",
        parameters=gpt_parameters(layers, hidden, vocabulary),
        source=source,
        batch={
            "train/cpu": cpu,
            "infer/cpu": cpu,
            "train/accelerator": accelerator,
            "infer/accelerator": accelerator,
        },
        memory_gib={"train": memory_gib, "infer": memory_gib / 4},
        optimizer="adamw",
        settings=(SEQUENCE,),
        fixed={"sequence": sequence},
        shape={"layers": layers, "hidden": hidden, "heads": heads, "vocabulary": vocabulary},
        can_recompute=True,
    )


CARAML = "CARAML suite (SC24)"
LANGUAGE_WORKLOADS = (
    _gpt("gpt-tiny", 4, 128, 4, 128, (256, 8), 4.0, "Prony's own, for tests and laptops", vocabulary=1024),
    _gpt("gpt-117m", 12, 768, 12, 1024, (32, 1), 40.0, f"GPT-2 small; {CARAML}"),
    _gpt("gpt-800m", 16, 2048, 8, 2048, (16, 1), 100.0, CARAML),
    _gpt("gpt-13b", 40, 5120, 32, 2048, (1, 1), 300.0, f"GPT-3 13B; {CARAML}"),
    _gpt("gpt-175b", 96, 12288, 96, 2048, (1, 1), 4000.0, f"GPT-3 175B; {CARAML}"),
)
