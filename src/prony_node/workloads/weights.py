"""`weights=PATH`: a checkpoint that the user has, put into a model that was just built. None is ever downloaded."""

from __future__ import annotations

import pickle
import re
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from prony_node.contract.errors import RequestError
from prony_node.contract.settings import Value

WRAPPED_IN = ("state_dict", "model")  # under which training scripts keep the weights beside other things
ZIP = b"PK\x03\x04"  # by which torch, too, tells a zip file
SHOWN = 3  # names of tensors in a sentence


@dataclass(frozen=True)
class Head:
    """What a fine-tuning puts on a model that was trained for something else."""

    new: tuple[str, ...] = ()  # its tensors begin so, and start from chance where the file has none
    old: tuple[str, ...] = ()  # tensors of the file that are left behind
    # Parts of names that published files have, as patterns, and what the model calls them.
    renamed: tuple[tuple[str, str], ...] = ()

    def name(self, published: str) -> str:
        """What the model calls a tensor of the file."""
        for pattern, own in self.renamed:
            published = re.sub(pattern, own, published)
        return published


SAME_HEAD = Head()


def with_weights(model: Callable[[], nn.Module], path: Value | None, head: Head = SAME_HEAD) -> Callable[[], nn.Module]:
    """The same model with the weights of that file; refused at once where there is no such file."""
    if path is None:
        return model
    file = Path(str(path)).expanduser()
    if not file.is_file():
        raise RequestError(f"weights={path} is not possible: there is no such file")

    def build() -> nn.Module:
        network = model()
        if not any(parameter.is_meta for parameter in network.parameters()):
            fill(network, read_weights(file), str(path), head)
        return network

    return build


def read_weights(file: Path) -> dict[str, Tensor]:
    """The tensors of a checkpoint by name: safetensors by its ending, else what torch.save wrote."""
    if file.suffix == ".safetensors":
        from safetensors.torch import load_file

        try:
            loaded: Any = load_file(file)
        except Exception as error:  # safetensors has an exception of its own kind for a broken file
            raise RequestError(f"weights={file} is not a safetensors file: {error}") from error
    else:
        _check_stored(file)
        try:
            loaded = torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:  # of what is no checkpoint torch's reader raises nearly anything
            other = isinstance(error, pickle.UnpicklingError) and "GLOBAL" in str(error)
            why = "it holds objects of other types, which could run code" if other else "it is damaged or another file"
            raise RequestError(
                f"weights={file} is not a file of tensors alone that torch.save wrote, and nothing else is opened: "
                f"{why}"
            ) from error
    for key in WRAPPED_IN:
        if isinstance(loaded, Mapping) and isinstance(loaded.get(key), Mapping):
            loaded = loaded[key]
    if not isinstance(loaded, Mapping) or not all(isinstance(value, Tensor) for value in loaded.values()):
        raise RequestError(f"weights={file} holds no state_dict: a dictionary from names to tensors was expected")
    # Distributed training wraps a model, and so its names.
    return {str(name).removeprefix("module."): value for name, value in loaded.items()}


def _check_stored(file: Path) -> None:
    """Refuse a zip file of which more comes out than it holds; torch.save compresses nothing."""
    with file.open("rb") as opened:
        if opened.read(len(ZIP)) != ZIP:
            return
    try:
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
    except (zipfile.BadZipFile, ValueError, NotImplementedError, UnicodeError) as error:
        raise RequestError(f"weights={file} is incomplete or damaged") from error
    packed = any(one.compress_type != zipfile.ZIP_STORED for one in members)
    if packed or sum(one.file_size for one in members) > file.stat().st_size:
        raise RequestError(f"weights={file} is refused: it is compressed, which torch.save never does; save it again")


def fill(network: nn.Module, weights: dict[str, Tensor], path: str, head: Head = SAME_HEAD) -> None:
    """Every tensor of the model from the file, and nothing left over, or a sentence that says what does not fit."""
    every = network.state_dict()
    weights = {name if name in every else head.name(name): value for name, value in weights.items()}
    own = {name: value for name, value in every.items() if name in weights or not name.startswith(head.new)}
    weights = {name: value for name, value in weights.items() if name in own or not name.startswith(head.old)}
    missing = [name for name in own if name not in weights]
    strange = [name for name in weights if name not in own]
    shapes = [
        f"{name} is {list(weights[name].shape)} there and {list(own[name].shape)} here"
        for name in own
        if name in weights and weights[name].shape != own[name].shape
    ]
    said = [
        f"{len(names)} {what} ({', '.join(names[:SHOWN])}{', ...' if len(names) > SHOWN else ''})"
        for names, what in (
            (missing, "tensors of the model are not in it"),
            (strange, "of its tensors are not the model's"),
            (shapes, "have another shape"),
        )
        if names
    ]
    if said:
        raise RequestError(f"weights={path} does not fit this model: {'; '.join(said)}")
    network.load_state_dict(weights, strict=False)  # strictly checked above, but for the head
