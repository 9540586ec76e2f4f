"""Language models: their dimensions, FLOPs and settings, torch-free."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from prony_node.contract.errors import RequestError
from prony_node.contract.settings import Setting, Value, replicas
from prony_node.workloads.config import CUDNN_BY_DEFAULT, WEIGHTS, Workload

SEQUENCE = Setting("sequence", "count", "tokens per sample", least=8)
PHASE = Setting(
    "phase",
    "choice",
    "inference: the whole sequence without a cache, filling a KV cache, or one token from a full cache",
    ("forward", "prefill", "decode"),
)
VOCABULARY_FILE = Setting(
    "vocab", "text", "vocab.txt of the checkpoint's WordPiece tokenizer (data=PATH)",
    pattern=r"\S(.*\S)?", example="a file",
)  # fmt: skip
TOKENIZER = Setting(
    "tokenizer", "text", "tokenizer.json for texts in JSON lines (data=PATH; default: bytes)",
    pattern=r"\S(.*\S)?", example="a file",
)  # fmt: skip
VOCABULARY = 50304  # GPT-2's 50257 tokens, padded to a multiple of 128 for the matrix units
ADAM_RATE, SGD_RATE, SGD_TOKENS = 3e-4, 0.1, 256  # from so many tokens per step on, SGD takes its full rate
CARAML = "CARAML suite (SC24)"
MEGATRON = "Narayanan et al., Efficient Large-Scale Language Model Training (2021), appendix"
TINY_GPT = {"layers": 2, "hidden": 64, "heads": 2, "vocabulary": 256}
GPT_FLOPS = (
    "2 FLOP per parameter and token (Brown et al., GPT-3, 2020, appendix D) and 4 x layers x hidden x sequence per "
    f"token for full attention ({MEGATRON}; CARAML runs its Megatron-LM); logits at every position, as in training"
)
BERT_FLOPS = (
    f"sequence x layers x (24 hidden^2 + 4 hidden x sequence) ({MEGATRON}); "
    "22.5 GFLOP for BERT-base at 128 tokens (Sun et al., MobileBERT, 2020, table 4)"
)


def gpt_parameters(layers: int, hidden: int, vocabulary: int) -> int:
    """Attention 4 h^2, feed-forward 8 h^2, two norms a layer; one tied embedding; a last norm."""
    return layers * (12 * hidden * hidden + 2 * hidden) + vocabulary * hidden + hidden


def dimensions(workload: Workload, settings: Mapping[str, Value]) -> dict[str, int]:
    """The model's dimensions at the size that was asked for."""
    tiny = TINY_BERT if workload.name.startswith("bert-") else TINY_GPT
    return {**workload.shape, **tiny} if settings.get("size") == "tiny" else dict(workload.shape)


def decoder_rate(settings: Mapping[str, Value]) -> float:
    """Of the optimizer; SGD's full rate makes a loss that is no number of steps that have few tokens."""
    if settings.get("optimizer") != "sgd":
        return ADAM_RATE
    if settings.get("batch_size", "auto") == "auto":
        return SGD_RATE
    samples = int(settings["batch_size"]) * int(settings.get("grad_accumulation", 1)) * replicas(settings)
    tokens = samples * int(settings["sequence"])
    return SGD_RATE * min(1.0, tokens / SGD_TOKENS)


def _gpt(name: str, layers: int, hidden: int, heads: int, sequence: int, batch: tuple[int, int],
         memory_gib: float, source: str, vocabulary: int = VOCABULARY) -> Workload:  # fmt: skip
    accelerator, cpu = batch
    parameters = gpt_parameters(layers, hidden, vocabulary)
    return Workload(
        name=name,
        help=f"decoder of {layers} layers, hidden {hidden}, {heads} heads, sequence {sequence}, rotary",
        module="prony_node.workloads.language",
        unit="tokens",
        parameters=parameters,
        source=source,
        batch={
            "train/cpu": cpu,
            "infer/cpu": cpu,
            "train/accelerator": accelerator,
            "infer/accelerator": accelerator,
        },
        memory_gib={"train": memory_gib, "infer": memory_gib / 4},
        optimizer="adamw",
        settings=(SEQUENCE, PHASE, WEIGHTS, TOKENIZER),
        fixed={"sequence": sequence, "phase": "forward"},
        kernels=CUDNN_BY_DEFAULT,
        shape={"layers": layers, "hidden": hidden, "heads": heads, "vocabulary": vocabulary},
        split_module="prony_node.workloads.language_split",
        tiny_shape=TINY_GPT,
        can_recompute=True,
        can_recompute_attention=True,
        has_fp8=True,
        flops=sequence * (2.0 * parameters + 4 * layers * hidden * sequence),
        flops_source=GPT_FLOPS,
        tiny={"sequence": 32},
        reads="tokens",
        generated="tokens",
        scores=("loss",),
    )


def _bert(name: str, layers: int, hidden: int, heads: int, parameters: int, batch: tuple[int, int],
          memory_gib: tuple[float, float]) -> Workload:  # fmt: skip
    training, inference = batch
    sequence = 384
    return Workload(
        name=name,
        help=f"fine-tuning of BERT ({layers} layers, hidden {hidden}) to answer with a span, sequence {sequence}",
        module="prony_node.workloads.language:build_bert",
        unit="sequences",
        parameters=parameters,
        source="Devlin et al., BERT (2018), SQuAD v1.1; transformers.BertForQuestionAnswering",
        batch={"train/cpu": 1, "infer/cpu": 1, "train/accelerator": training, "infer/accelerator": inference},
        memory_gib={"train": memory_gib[0], "infer": memory_gib[1]},
        optimizer="adamw",
        epoch_samples=87_599,  # questions to train on in SQuAD v1.1; a long paragraph makes more sequences than one
        settings=(SEQUENCE, WEIGHTS, VOCABULARY_FILE),
        fixed={"sequence": sequence},
        kernels=CUDNN_BY_DEFAULT,
        shape={"layers": layers, "hidden": hidden, "heads": heads, "vocabulary": 30_522, "positions": 512},
        can_recompute=True,
        library="transformers",
        flops=sequence * layers * (24.0 * hidden**2 + 4 * hidden * sequence),
        flops_source=BERT_FLOPS,
        tiny={"sequence": 32},
        reads="spans",
        scores=("exact_match", "loss"),
    )


TINY_BERT = {"layers": 2, "hidden": 64, "heads": 2, "vocabulary": 2048}
LANGUAGE_WORKLOADS = (
    _gpt("gpt-tiny", 4, 128, 4, 128, (256, 8), 4.0, "Prony's own, for tests and laptops", vocabulary=1024),
    _gpt("gpt-117m", 12, 768, 12, 1024, (32, 1), 40.0, f"GPT-2 small; {CARAML}"),
    _gpt("gpt-800m", 16, 2048, 8, 2048, (16, 1), 100.0, CARAML),
    _gpt("gpt-13b", 40, 5120, 32, 2048, (1, 1), 300.0, f"GPT-3 13B; {CARAML}"),
    _gpt("gpt-175b", 96, 12288, 96, 2048, (1, 1), 4000.0, f"GPT-3 175B; {CARAML}"),
    _bert("bert-base-squad", 12, 768, 12, 108_893_186, (128, 256), (24.0, 4.0)),
    _bert("bert-large-squad", 24, 1024, 16, 334_094_338, (64, 256), (32.0, 6.0)),
)


def transformers_workload(model: str) -> Workload:
    """The workload `hf/NAME`: what NAME is, a model type or a config of the user's, only transformers can tell."""
    if not model:
        raise RequestError("hf/ wants the type of a model, such as hf/llama, or a config, such as hf/./config.json")
    return Workload(
        name=f"hf/{model}",
        help=f"causal language model {model} of transformers, from its configuration",
        module="prony_node.workloads.language_libraries",
        unit="tokens",
        parameters=None,
        source=f"transformers, AutoModelForCausalLM of {model}",
        batch={"train/cpu": 1, "infer/cpu": 1, "train/accelerator": 8, "infer/accelerator": 8},
        memory_gib={"train": 0.0, "infer": 0.0},  # not known, so the batch is not made smaller
        optimizer="adamw",
        settings=(SEQUENCE, WEIGHTS, TOKENIZER),
        fixed={"sequence": 1024},
        kernels=CUDNN_BY_DEFAULT,
        can_recompute=True,
        library="transformers",
        tiny={"sequence": 32},
        asks_node=True,
        reads="tokens",
        generated="tokens",
        scores=("loss",),
    )


LANGUAGE_LIBRARIES: dict[str, Callable[[str], Workload]] = {"hf": transformers_workload}
