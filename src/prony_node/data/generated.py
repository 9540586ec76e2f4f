"""`data=generated`: a data set with the shape, size and encoding of a real one, written to disk once."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import threading
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prony_node.contract import RequestError
from prony_node.contract.errors import unknown
from prony_node.contract.files import read_plain_json, to_json
from prony_node.contract.plain import write_alone
from prony_node.data.dataset import listing
from prony_node.data.manifest import (
    LOCK,
    NEW,
    REQUEST,
    Made,
    Report,
    append_part,
    check_room,
    finish,
    finished_parts,
    held,
    read_manifest,
    remove_unfinished,
    rewrite_parts,
)
from prony_node.data.parts import KINDS, SEQUENCE, Part, Request, headers, make_part, plan_parts
from prony_node.data.pictures import LOOKS, require_encoder, seconds_per_image
from prony_node.data.place import FILES_ALONE, FORMS
from prony_node.data.streets import SCENE_BYTES, seconds_per_scene

HEADERS = -1  # the number of the part that holds names and lists
TOKENS_PER_S = 4e6  # of one process, on a core of 2024; an order of magnitude
FEW_SAMPLES = 256  # made sooner than processes are started
FEW_STREETS = 8
MOST_SAMPLES = 100_000_000  # of which the parts can be listed in memory
SHARE_MORE = 1.05  # room asked for beyond the estimate
BLOCK = 4096  # of a file system: every file takes whole ones
TAR_BLOCK = 512  # a header for image and label each, and the label's own block


@dataclass(frozen=True)
class Estimate:
    bytes: int
    seconds: float | None  # with `processes` processes, None when it could not be tried
    processes: int


def estimate(kind: str, samples: int, form: str = "files", processes: int | None = None) -> Estimate:
    """What a data set will take, before it is started; the time from making a few images now."""
    request = _request(kind, samples, 0, form, None)
    count = processes or default_processes()
    every = request.samples + request.test_samples
    size = _expected_bytes(request)
    if kind == "tokens":
        return Estimate(size, every * SEQUENCE / TOKENS_PER_S / count, count)
    try:
        require_encoder()
    except ModuleNotFoundError:
        return Estimate(size, None, count)
    each_s = seconds_per_scene() if kind == "cityscapes" else seconds_per_image(LOOKS[kind])
    return Estimate(size, each_s * every / count, count)


def _expected_bytes(request: Request) -> int:
    every = request.samples + request.test_samples
    if request.kind == "tokens":
        return 2 * every * SEQUENCE
    if request.kind == "cityscapes":
        return every * (SCENE_BYTES + BLOCK)
    overhead = BLOCK // 2 if request.form == "files" else 3 * TAR_BLOCK + TAR_BLOCK // 2
    return every * (LOOKS[request.kind].mean_bytes + overhead)


def default_processes() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True)
class Standing:
    """How much of a data set is there already."""

    there: int
    samples: int  # in all, those to test among them

    @property
    def left_share(self) -> float:
        return (self.samples - self.there) / self.samples


def standing(kind: str, folder: Path | str, samples: int, seed: int = 0, form: str = "files") -> Standing:
    """What `generate` would find in that folder, or its refusal. Nothing is written."""
    folder = Path(folder).expanduser()
    request = _request(kind, samples, seed, form, None)
    every = request.samples + request.test_samples
    if _is_begun(folder, _document(request)) and read_manifest(folder) is not None:
        return Standing(every, every)
    if kind != "tokens":
        require_encoder()
    todo = _parts_left(request, finished_parts(folder))
    found = Standing(every - sum(part.count for part in todo), every)
    _check_room(folder, request, found)
    return found


def generate(
    kind: str,
    folder: Path | str,
    samples: int,
    seed: int = 0,
    form: str = "files",
    report: Report | None = None,
    *,
    processes: int | None = None,
    classes: int | None = None,
) -> dict[str, Any]:
    """Write the data set, go on with one that was begun, or do nothing with one that is there. Its manifest.

    `report` is told the samples that are there, and all that there will be.
    """
    folder = Path(folder).expanduser()
    request = _request(kind, samples, seed, form, classes)
    document = _document(request)
    _claim(folder, document)
    with held(folder):
        finished = read_manifest(folder)
        if finished is not None:
            return finished
        if kind != "tokens":
            require_encoder()
        done = finished_parts(folder)
        rewrite_parts(folder, done)
        remove_unfinished(folder)
        todo = _parts_left(request, done)
        every = request.samples + request.test_samples
        there = every - sum(part.count for part in todo)
        _check_room(folder, request, Standing(there, every))
        if HEADERS not in done:
            done[HEADERS] = headers(folder, request)
            append_part(folder, HEADERS, done[HEADERS])
        few = FEW_STREETS if kind == "cityscapes" else FEW_SAMPLES
        several = 1 if every - there < few else default_processes()
        for part, files in _made(folder, request, todo, processes or several):
            append_part(folder, part.number, files)
            done[part.number] = files
            there += part.count
            if report is not None:
                report(there, every)
        return finish(folder, document, done)


def _parts_left(request: Request, done: dict[int, list[Made]]) -> list[Part]:
    return [part for part in plan_parts(request) if part.number not in done]


def _check_room(folder: Path, request: Request, found: Standing) -> None:
    check_room(folder, round(SHARE_MORE * _expected_bytes(request) * found.left_share))


def _made(folder: Path, request: Request, todo: list[Part], processes: int) -> Iterator[tuple[Part, list[Made]]]:
    """Each part as it is finished."""
    if processes <= 1 or len(todo) <= 1:
        for part in todo:
            yield part, make_part(folder, request, part)
        return
    # Spawned, not forked: whoever asks may hold a device, and threads of its own.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(processes, len(todo)), mp_context=context, initializer=_end_with_parent) as pool:
        running: dict[Future[list[Made]], Part] = {}
        waiting = list(reversed(todo))
        try:
            while True:
                while waiting and len(running) < 2 * processes:
                    part = waiting.pop()
                    running[pool.submit(make_part, folder, request, part)] = part
                if not running:
                    return
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    yield running.pop(future), future.result()
        except BrokenProcessPool as error:
            message = "a process that generates data was killed (is there memory enough?); asked again, it goes on"
            raise RuntimeError(message) from error
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _end_with_parent() -> None:
    """A worker whose parent was killed would wait for work for ever."""
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _request(kind: str, samples: int, seed: int, form: str, classes: int | None) -> Request:
    if kind not in KINDS:
        raise unknown("kind of generated data", kind, KINDS)
    if form not in FORMS:
        raise unknown("form of generated data", form, FORMS)
    if not 1 <= samples <= MOST_SAMPLES:
        raise RequestError(f"{samples:,} samples are not possible: expected from 1 to {MOST_SAMPLES:,}")
    form = "files" if kind in FILES_ALONE else form
    if kind not in LOOKS:
        return Request(kind, samples, seed, form, 0)
    # No more classes than images, so that every class of the test split was seen in training.
    return Request(kind, samples, seed, form, min(classes or LOOKS[kind].classes, samples))


def _document(request: Request) -> dict[str, Any]:
    return {"made": "prony", **dataclasses.asdict(request)}


def _claim(folder: Path, document: dict[str, Any]) -> None:
    """The folder is new, or it holds this very request."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not _is_begun(folder, document):
            write_alone(folder / REQUEST, to_json(document).encode())
    except OSError as error:
        raise RequestError(f"{folder} cannot be written to: {error.strerror}") from error


def _is_begun(folder: Path, document: dict[str, Any]) -> bool:
    """Whether this request was begun here; refused is a folder with another, or with anything else."""
    try:
        names = [entry.name for entry in folder.iterdir()]
    except FileNotFoundError:
        return False
    except OSError as error:
        raise RequestError(f"{folder} cannot be written to: {error.strerror}") from error
    begun = read_plain_json(folder / REQUEST)
    if begun is None:
        if any(name not in (REQUEST, LOCK) and not name.startswith(NEW) for name in names):
            raise RequestError(f"{folder} is not empty ({listing(folder)}): expected a new folder for generated data")
        return False
    if begun != document:
        keys = [key for key in document if not isinstance(begun, dict) or begun.get(key) != document[key]]
        held_now = ", ".join(f"{key}={begun.get(key)}" for key in keys) if isinstance(begun, dict) else "something else"
        asked = ", ".join(f"{key}={document[key]}" for key in keys)
        raise RequestError(f"{folder} holds generated data with {held_now}; asked for {asked}. Choose another folder")
    return True
