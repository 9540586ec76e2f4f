"""Files of a job as lines of its log, for a cluster whose disks nobody outside sees.

A frame is one line: a mark, a checksum, and base64 of a JSON header and bytes. A log holds other lines too, some cut,
some doubled, some made to look like frames: what does not check out is no frame. Every frame says where its bytes
belong, so reading a log twice, or from the middle, changes nothing.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

MARK = b"@prony/1 "
BROKEN_MARK = b"@ prony/1 "  # what a line that is no frame has in its place
PART_BYTES = 6000  # base64 of it stays well under the 16 KiB at which container logs cut a line
CHECK_CHARACTERS = 16


@dataclass(frozen=True)
class Frame:
    """What a frame carries: `header` names it, `body` is its bytes."""

    header: dict[str, Any]
    body: bytes = field(default=b"", repr=False)


def encode(frame: Frame) -> bytes:
    """The line of a frame, with its end."""
    head = json.dumps(frame.header, separators=(",", ":"), sort_keys=True).encode()
    text = base64.b64encode(head + b"\n" + frame.body)
    return MARK + _check(text) + b" " + text + b"\n"


def decode(line: bytes) -> Frame | None:
    """The frame of a line, wherever in it the frame begins; None for any other line."""
    begin = line.rfind(MARK)
    if begin < 0:
        return None
    check, _, text = line[begin + len(MARK) :].strip().partition(b" ")
    if len(check) != CHECK_CHARACTERS or check != _check(text):
        return None
    try:
        head, _, body = base64.b64decode(text, validate=True).partition(b"\n")
        header = json.loads(head)
    except (binascii.Error, ValueError, RecursionError):
        return None
    return Frame(header, body) if isinstance(header, dict) else None


def plain(line: bytes) -> bytes:
    """A line of someone else's, such that it is not taken for a frame."""
    return line.replace(MARK, BROKEN_MARK)


def in_parts(name: str, content: bytes) -> list[Frame]:
    """A bundle as frames; each names the whole by its hash, so that parts of two tries do not mix."""
    digest = hashlib.sha256(content).hexdigest()
    parts = [content[at : at + PART_BYTES] for at in range(0, len(content), PART_BYTES)] or [b""]
    return [
        Frame({"bundle": name, "part": number, "of": len(parts), "sha256": digest}, part)
        for number, part in enumerate(parts)
    ]


def _check(text: bytes) -> bytes:
    return hashlib.sha256(text).hexdigest()[:CHECK_CHARACTERS].encode()
