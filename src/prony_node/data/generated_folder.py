"""Where generated data lies when nobody says where, so that a command that makes it and a run that uses it agree."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from prony_node.contract.cache import cache_folder
from prony_node.contract.errors import RequestError

FORMS = ("files", "shards")
FILES_ALONE = ("tokens", "coco", "cityscapes")  # kinds that are never written as shards
DEFAULT_SAMPLES = {  # to train, by kind
    "imagenet": 20_000, "food101": 20_000, "tokens": 16_384, "coco": 20_000, "cityscapes": 2975,
}  # fmt: skip
TINY = 10  # times fewer for a model of size=tiny


def generated_folder(
    kind: str, samples: int, form: str, seed: int, environment: Mapping[str, str] = os.environ
) -> Path:
    """One folder for one request. Some kinds have one form, so asking for another leads to the same place."""
    written = "files" if kind in FILES_ALONE else form
    return generated_root(environment) / f"{kind}-{written}-{samples}-seed{seed}"


def generated_root(environment: Mapping[str, str] = os.environ) -> Path:
    """$PRONY_DATA, or prony/data in the user's folder for what can be made again."""
    if stated := environment.get("PRONY_DATA"):
        return Path(stated).expanduser().absolute()
    cache = cache_folder(environment)
    if cache is None:
        raise RequestError("there is no home folder to put generated data into; set PRONY_DATA to a folder")
    return cache / "data"
