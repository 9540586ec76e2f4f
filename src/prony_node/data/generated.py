"""`data=generated`: a data set with the shape, size and encoding of a real one, written to disk once, in parts."""

from __future__ import annotations

import ctypes
import dataclasses
import io
import json
import multiprocessing
import os
import tarfile
import threading
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from prony_node.contract import RequestError
from prony_node.contract.errors import unknown
from prony_node.contract.files import read_plain_json, to_json
from prony_node.contract.safe_files import write_alone
from prony_node.data.dataset import (
    LOCK,
    NEW,
    REQUEST,
    FinishedFile,
    Report,
    append_part,
    check_room,
    finish,
    finished_parts,
    held,
    listing,
    read_manifest,
    remove_unfinished,
    rewrite_parts,
    write_file,
)
from prony_node.data.generated_folder import DEFAULT_SAMPLES, FILES_ALONE, FORMS
from prony_node.data.synthetic import token_sampler

if TYPE_CHECKING:
    from prony_node.data.detection import Scene

KINDS = tuple(DEFAULT_SAMPLES)
WITHOUT_CLASSES = ("tokens", "cityscapes")  # tokens have none, and street scenes have all of theirs
PART_IMAGES = 1000  # in a shard, about 100 MB of ImageNet's
PART_FILES = 250  # image files between two lines of the list
PART_SEQUENCES = 4096
PART_STREETS = 25  # street scenes, about 60 MB
SEQUENCE, VOCABULARY = 1024, 50257  # GPT-2's
HELD_OUT = 20  # one sample to test for every twenty to train
HELD_OUT_STREETS = 5.95  # Cityscapes has 500 to 2975


@dataclass(frozen=True)
class GenerationRequest:
    kind: str
    samples: int  # to train; a twentieth as many to test come on top, of street scenes a sixth
    seed: int
    form: str
    classes: int  # 0 for tokens, and for street scenes, which have them all

    @property
    def test_samples(self) -> int:
        return max(1, int(self.samples / (HELD_OUT_STREETS if self.kind == "cityscapes" else HELD_OUT)))

    @property
    def part_samples(self) -> int:
        if self.kind not in WITHOUT_CLASSES:
            return PART_FILES if self.form == "files" else PART_IMAGES
        return PART_SEQUENCES if self.kind == "tokens" else PART_STREETS


@dataclass(frozen=True)
class DataPart:
    number: int
    split: str
    first: int  # of the split's samples
    count: int
    in_split: int  # the number of this part in its split


def plan_parts(request: GenerationRequest) -> list[DataPart]:
    size = request.part_samples
    parts: list[DataPart] = []
    for split, samples in (("train", request.samples), ("val", request.test_samples)):
        for at, first in enumerate(range(0, samples, size)):
            parts.append(DataPart(len(parts), split, first, min(size, samples - first), at))
    return parts


def make_part(folder: Path, request: GenerationRequest, part: DataPart) -> list[FinishedFile]:
    """Write the part; the same bytes for the same request, whoever makes it and when."""
    torch.set_num_threads(1)  # the processes are the parallelism
    if request.kind == "tokens":
        return _token_file(folder, request, part)
    if request.kind == "cityscapes":
        from prony_node.data import pictures

        return [
            write_file(folder, name, content)
            for index in range(part.first, part.first + part.count)
            for name, content in pictures.street_files(part.split, index, _sample_seed(request, part.split, index))
        ]
    if request.form == "shards":
        return [write_file(folder, f"{part.split}-{part.in_split:06d}.tar", _shard(request, part))]
    return [
        write_file(folder, _image_name(request, part.split, index), _image(request, part.split, index))
        for index in range(part.first, part.first + part.count)
    ]


def headers(folder: Path, request: GenerationRequest) -> list[FinishedFile]:
    """The small files that belong to a layout: names of classes, Food-101's lists, COCO's boxes."""
    if request.kind == "tokens":
        note = json.dumps({"dtype": "uint16", "vocabulary": VOCABULARY}).encode()
        return [write_file(folder, "meta.json", note)]
    if request.kind == "coco":
        splits = (("train", request.samples), ("val", request.test_samples))
        return [write_file(folder, *_instances(request, *split)) for split in splits]
    if request.kind == "cityscapes":
        return []
    names = "".join(f"{class_name(label)}\n" for label in range(request.classes)).encode()
    if request.form == "shards":
        return [write_file(folder, "classes.txt", names)]
    if request.kind == "imagenet":
        return []
    made = [write_file(folder, "meta/classes.txt", names)]
    for split, name, samples in (("train", "train", request.samples), ("val", "test", request.test_samples)):
        lines = [_image_name(request, split, index)[len("images/") : -len(".jpg")] for index in range(samples)]
        made.append(write_file(folder, f"meta/{name}.txt", "".join(f"{line}\n" for line in lines).encode()))
    return made


def class_name(label: int) -> str:
    return f"c{label:05d}"


def _label(request: GenerationRequest, index: int) -> int:
    return index % request.classes


def _sample_seed(request: GenerationRequest, split: str, index: int) -> int:
    """A number for every sample; test samples are others than those to train."""
    return hash((request.seed, 1 if split == "val" else 0, index)) & (2**63 - 1)


def _image_name(request: GenerationRequest, split: str, index: int) -> str:
    if request.kind == "coco":
        return f"{split}2017/{_scene_number(split, index):012d}.jpg"
    name = class_name(_label(request, index))
    if request.kind == "food101":
        return f"images/{name}/{index + (10_000_000 if split == 'val' else 0)}.jpg"
    return f"{split}/{name}/{name}_{index}.JPEG"


def _image(request: GenerationRequest, split: str, index: int) -> bytes:
    from prony_node.data import pictures

    look = pictures.LOOKS[request.kind]
    if request.kind == "coco":
        seed = _sample_seed(request, split, index)
        return pictures.scene_jpeg(look, _scene(request, split, index), _textures(request.classes), seed)
    patterns = _patterns(request.classes)
    return pictures.make_image(look, patterns, _label(request, index), _sample_seed(request, split, index))


@lru_cache(maxsize=2)
def _patterns(classes: int) -> Tensor:
    from prony_node.data import pictures

    return pictures.class_patterns(classes)


@lru_cache(maxsize=2)
def _textures(classes: int) -> Tensor:
    from prony_node.data.detection import class_textures

    return class_textures(classes + 1)  # 0 is the background's


def _scene(request: GenerationRequest, split: str, index: int) -> Scene:
    from prony_node.data import pictures
    from prony_node.data.detection import COCO_SCENERY

    return pictures.made_scene(COCO_SCENERY, request.classes, _sample_seed(request, split, index))


def _scene_number(split: str, index: int) -> int:
    return index + 1 + (10_000_000 if split == "val" else 0)


def _instances(request: GenerationRequest, split: str, samples: int) -> tuple[str, bytes]:
    """Name and content of the file that says which boxes lie in each image of a split."""
    from prony_node.data import pictures

    scenes = (
        (_scene_number(split, index), Path(_image_name(request, split, index)).name, _scene(request, split, index))
        for index in range(samples)
    )
    document = pictures.instances(scenes, request.classes)
    return f"annotations/instances_{split}2017.json", json.dumps(document).encode()


def _shard(request: GenerationRequest, part: DataPart) -> bytes:
    """A tar file of pairs. A shard is shuffled by its making: neighbours are of other classes."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for index in range(part.first, part.first + part.count):
            for kind, content in (
                ("jpg", _image(request, part.split, index)),
                ("cls", str(_label(request, index)).encode()),
            ):
                member = tarfile.TarInfo(f"{index:08d}.{kind}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    return data.getvalue()


def _token_file(folder: Path, request: GenerationRequest, part: DataPart) -> list[FinishedFile]:
    """Sequences one after another, and one token more, so that the last one has what follows it."""
    generator = torch.Generator().manual_seed(_sample_seed(request, part.split, part.first))
    tokens, following = token_sampler(VOCABULARY, SEQUENCE)(generator, part.count)
    flat = torch.cat([tokens.flatten(), following[-1, -1:]]).to(torch.uint16)
    data = ctypes.string_at(flat.data_ptr(), flat.nbytes)
    return [write_file(folder, f"{part.split}-{part.in_split:06d}.bin", data)]


HEADERS = -1  # the number of the part that holds names and lists
TOKENS_PER_S = 4e6  # of one process, on a core of 2024; an order of magnitude
FEW_SAMPLES = 256  # made sooner than processes are started
FEW_STREETS = 8
MOST_SAMPLES = 100_000_000  # of which the parts can be listed in memory
SHARE_MORE = 1.05  # room asked for beyond the estimate
BLOCK = 4096  # of a file system: every file takes whole ones
TAR_BLOCK = 512  # a header for image and label each, and the label's own block


@dataclass(frozen=True)
class GenerationEstimate:
    bytes: int
    seconds: float | None  # with `processes` processes, None when it could not be tried
    processes: int


def estimate(kind: str, samples: int, form: str = "files", processes: int | None = None) -> GenerationEstimate:
    """What a data set will take, before it is started; the time from making a few images now."""
    request = _request(kind, samples, 0, form, None)
    count = processes or default_processes()
    every = request.samples + request.test_samples
    size = _expected_bytes(request)
    if kind == "tokens":
        return GenerationEstimate(size, every * SEQUENCE / TOKENS_PER_S / count, count)
    from prony_node.data import pictures

    try:
        pictures.require_encoder()
    except ModuleNotFoundError:
        return GenerationEstimate(size, None, count)
    each_s = pictures.seconds_per_scene() if kind == "cityscapes" else pictures.seconds_per_image(pictures.LOOKS[kind])
    return GenerationEstimate(size, each_s * every / count, count)


def _expected_bytes(request: GenerationRequest) -> int:
    every = request.samples + request.test_samples
    if request.kind == "tokens":
        return 2 * every * SEQUENCE
    from prony_node.data import pictures

    if request.kind == "cityscapes":
        return every * (pictures.SCENE_BYTES + BLOCK)
    overhead = BLOCK // 2 if request.form == "files" else 3 * TAR_BLOCK + TAR_BLOCK // 2
    return every * (pictures.LOOKS[request.kind].mean_bytes + overhead)


def default_processes() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True)
class GenerationState:
    """How much of a data set is there already."""

    there: int
    samples: int  # in all, those to test among them

    @property
    def left_share(self) -> float:
        return (self.samples - self.there) / self.samples


def standing(kind: str, folder: Path | str, samples: int, seed: int = 0, form: str = "files") -> GenerationState:
    """What `generate` would find in that folder, or its refusal. Nothing is written."""
    folder = Path(folder).expanduser()
    request = _request(kind, samples, seed, form, None)
    every = request.samples + request.test_samples
    if _is_begun(folder, _document(request)) and read_manifest(folder) is not None:
        return GenerationState(every, every)
    if kind != "tokens":
        from prony_node.data import pictures

        pictures.require_encoder()
    todo = _parts_left(request, finished_parts(folder))
    found = GenerationState(every - sum(part.count for part in todo), every)
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
            from prony_node.data import pictures

            pictures.require_encoder()
        done = finished_parts(folder)
        rewrite_parts(folder, done)
        remove_unfinished(folder)
        todo = _parts_left(request, done)
        every = request.samples + request.test_samples
        there = every - sum(part.count for part in todo)
        _check_room(folder, request, GenerationState(there, every))
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


def _parts_left(request: GenerationRequest, done: dict[int, list[FinishedFile]]) -> list[DataPart]:
    return [part for part in plan_parts(request) if part.number not in done]


def _check_room(folder: Path, request: GenerationRequest, found: GenerationState) -> None:
    check_room(folder, round(SHARE_MORE * _expected_bytes(request) * found.left_share))


def _made(
    folder: Path, request: GenerationRequest, todo: list[DataPart], processes: int
) -> Iterator[tuple[DataPart, list[FinishedFile]]]:
    """Each part as it is finished."""
    if processes <= 1 or len(todo) <= 1:
        for part in todo:
            yield part, make_part(folder, request, part)
        return
    # Spawned, not forked: whoever asks may hold a device, and threads of its own.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(processes, len(todo)), mp_context=context, initializer=_end_with_parent) as pool:
        running: dict[Future[list[FinishedFile]], DataPart] = {}
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


def _request(kind: str, samples: int, seed: int, form: str, classes: int | None) -> GenerationRequest:
    if kind not in KINDS:
        raise unknown("kind of generated data", kind, KINDS)
    if form not in FORMS:
        raise unknown("form of generated data", form, FORMS)
    if not 1 <= samples <= MOST_SAMPLES:
        raise RequestError(f"{samples:,} samples are not possible: expected from 1 to {MOST_SAMPLES:,}")
    form = "files" if kind in FILES_ALONE else form
    if kind in WITHOUT_CLASSES:
        return GenerationRequest(kind, samples, seed, form, 0)
    from prony_node.data import pictures

    # No more classes than images, so that every class of the test split was seen in training.
    return GenerationRequest(kind, samples, seed, form, min(classes or pictures.LOOKS[kind].classes, samples))


def _document(request: GenerationRequest) -> dict[str, Any]:
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
