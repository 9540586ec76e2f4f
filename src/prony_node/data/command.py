"""`python -m prony_node data ...`: what `prony data` asks of a node, answered in lines of JSON while it works.

A line is an object with one key: `estimate`, `progress`, and at the end `answer`, `refused`, `failed` or `damaged`.
torch is imported when the words are known to be right.
"""

from __future__ import annotations

import argparse
import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prony_node.contract.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_REQUEST, RequestError, unknown
from prony_node.contract.plugins import install_command
from prony_node.data.generated_folder import DEFAULT_SAMPLES, FILES_ALONE, FORMS, generated_folder

if TYPE_CHECKING:
    from prony_node.data.dataset import DataSet

BETWEEN_S = 0.1  # two lines of progress


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m prony_node data", allow_abbrev=False)
    parser.add_argument("--attended", action="store_true", help="end when the input ends; write after a first line")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="show|generate|verify")
    verbs.add_parser("show").add_argument("path", type=Path)
    verbs.add_parser("verify").add_argument("path", type=Path)
    generate = verbs.add_parser("generate")
    generate.add_argument("kind")
    generate.add_argument("--samples", type=int)
    generate.add_argument("--format", default="files")
    generate.add_argument("--seed", type=int, default=0)
    generate.add_argument("--out", type=Path)
    return parser


def main(words: list[str]) -> int:
    options = make_parser().parse_args(words)
    attendant = Attendant() if options.attended else None
    try:
        return VERBS[options.verb](options, attendant)
    except RequestError as error:
        tell("refused", str(error))
        return EXIT_REQUEST
    except ModuleNotFoundError as error:
        needs = "torch, and torchvision and Pillow for images"
        how = f"{install_command('node,vision')}, or let PRONY_PYTHON name a Python that has them"
        tell("refused", f"data sets need {needs}: {error}. {how}")
        return EXIT_REQUEST
    except (OSError, RuntimeError) as error:
        tell("failed", str(error) or type(error).__name__)
        return EXIT_FAILED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


class Attendant:
    """Whoever holds our input: a line of theirs agrees, its end ends us at once, as a kill would.

    What is finished is listed by then, and a worker ends with its parent: nothing is lost that was told.
    """

    def __init__(self) -> None:
        self._agreed = threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    def wait(self) -> None:
        self._agreed.wait()

    def _watch(self) -> None:
        while os.read(0, 4096):
            self._agreed.set()
        os._exit(EXIT_INTERRUPTED)


def tell(what: str, content: Any) -> None:
    print(json.dumps({what: content}), flush=True)


def reporter() -> Callable[[int, int], None]:
    """Tells progress now and then, and the end of it."""
    told_s = 0.0

    def report(done: int, every: int) -> None:
        nonlocal told_s
        if done >= every or time.monotonic() - told_s >= BETWEEN_S:
            told_s = time.monotonic()
            tell("progress", [done, every])

    return report


def show(options: argparse.Namespace, attendant: Attendant | None) -> int:
    """What lies in a folder, split by split; a split that cannot be opened has the sentence that says why."""
    from prony_node.data.dataset import SPLITS, read_manifest
    from prony_node.data.source import open_dataset

    path = options.path.expanduser().absolute()
    splits: dict[str, dict[str, Any]] = {}
    refusals = []
    kinds = []
    for split in SPLITS:
        try:
            opened = open_dataset(path, split=split)
        except RequestError as error:
            refusals.append(error)
            splits[split] = {"refused": str(error)}
        else:
            kinds.append(opened.kind)
            splits[split] = describe(opened)
    if not kinds:
        raise refusals[0]
    made = read_manifest(path) if path.is_dir() else None
    kept = {key: made.get(key) for key in ("kind", "form", "samples", "seed")} if made else None
    tell("answer", {"path": str(path), "kind": kinds[0], "splits": splits, "generated": kept})
    return EXIT_REQUEST if refusals else 0


def describe(opened: DataSet) -> dict[str, Any]:
    from prony_node.data.dataset import WEIGHED_FILES, weigh

    return {
        "samples": len(opened),
        "classes": opened.class_count or None,
        "vocabulary": getattr(opened, "vocabulary", None),
        "sequence": getattr(opened, "sequence", None),
        "files": len(opened.origin.files),
        "bytes": weigh(opened.origin.files),
        "bytes_are_exact": len(opened.origin.files) <= WEIGHED_FILES,
        "fingerprint": opened.fingerprint(),
    }


def generate(options: argparse.Namespace, attendant: Attendant | None) -> int:
    """The estimate first; then, when it is agreed to, the data."""
    kind, seed = options.kind, options.seed
    if kind not in DEFAULT_SAMPLES:
        raise unknown("kind of generated data", kind, DEFAULT_SAMPLES)
    if options.format not in FORMS:
        raise unknown("--format", options.format, FORMS)
    samples = DEFAULT_SAMPLES[kind] if options.samples is None else options.samples
    form = "files" if kind in FILES_ALONE else options.format
    folder = (options.out or generated_folder(kind, samples, form, seed)).expanduser().absolute()

    from prony_node.data.generated import estimate, standing
    from prony_node.data.generated import generate as write

    found = standing(kind, folder, samples, seed, form)
    if found.there < found.samples:
        expected = estimate(kind, samples, form)
        left_s = None if expected.seconds is None else expected.seconds * found.left_share
        left = {"left_bytes": round(expected.bytes * found.left_share), "left_s": left_s}
        more = {"kind": kind, "form": form, "samples": samples, "every": found.samples, "there": found.there}
        tell("estimate", {"folder": str(folder), "processes": expected.processes, **more, **left})
        if attendant is not None:
            attendant.wait()
    made = write(kind, folder, samples, seed, form, reporter())
    was_made = found.there < found.samples
    tell("answer", {"folder": str(folder), "was_made": was_made, "files": made["files"], "bytes": made["bytes"]})
    return 0


def verify(options: argparse.Namespace, attendant: Attendant | None) -> int:
    from prony_node.data.dataset import Damaged
    from prony_node.data.dataset import verify as read_again

    path = options.path.expanduser().absolute()
    try:
        made = read_again(path, reporter())
    except Damaged as error:
        tell("damaged", {"sentence": str(error), "files": error.files})
        return EXIT_FAILED
    tell("answer", {"path": str(path), "files": made["files"], "bytes": made["bytes"]})
    return 0


VERBS: dict[str, Callable[[argparse.Namespace, Attendant | None], int]] = {
    "show": show,
    "generate": generate,
    "verify": verify,
}
