"""Which extra of the package brings a library, so that a missing one is answered with what to install."""

from __future__ import annotations

# The extras of pyproject.toml that a node may need, each with the names under which its libraries are imported.
EXTRAS = {
    "node": ("torch", "pynvml"),
    "vision": ("torchvision", "timm", "PIL", "safetensors"),
    "language": ("transformers", "tokenizers", "safetensors"),
    "scenes": (
        "torchvision", "transformers", "segmentation_models_pytorch", "scipy",
        "timm", "PIL", "tokenizers", "safetensors",
    ),
}  # fmt: skip
OF_FAMILY = {"segment": "scenes", "dino": "scenes"}  # of others the first extra that has the library is right
FAMILIES = "prony_node.workloads."


def extra_of(library: str, module: str = "") -> str | None:
    """The extra that brings a library to the workload of this module; None for a library that no extra has."""
    own = OF_FAMILY.get(module.removeprefix(FAMILIES).partition(":")[0])
    if own is not None and library in EXTRAS[own]:
        return own
    return next((extra for extra, libraries in EXTRAS.items() if library in libraries), None)


def install_command(extra: str) -> str:
    return f"pip install 'prony[{extra}]'"


def missing_library(library: str, module: str = "") -> str:
    """The sentence of a run whose workload cannot import a library."""
    extra = extra_of(library, module)
    how = f": {install_command(extra)}" if extra else ""
    return f"this workload needs {library}, which is not installed here{how}"
