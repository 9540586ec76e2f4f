"""How the node program of a job begins. The text of this file is part of each script of a job.

`python -c TEXT NODE HASH FILE HASH WORDS`: NODE is the program, FILE its standard input ("" for none). Whoever may
write to a folder above the job can exchange its files, so each is read once and must have the hash in the script.
"""

import hashlib
import os
import runpy
import sys
import tempfile
from pathlib import Path

MOST_BYTES = 2**26  # a larger file is another one
PLACE = "prony-node-"


def read(path: str, wanted: str) -> bytes:
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:  # a FIFO keeps nobody waiting
            content = file.read(MOST_BYTES) or b""
    except OSError as error:
        sys.exit(refuse(f"{path} cannot be read: {error.strerror}"))
    if hashlib.sha256(content).hexdigest() != wanted:
        sys.exit(refuse(f"{path} is not what this job was submitted with"))
    return content


def safe_place() -> str:
    """A temporary folder in which nobody else can exchange the program: each folder above it is sticky or closed."""
    for place in (tempfile.gettempdir(), "/tmp", "/var/tmp", "/dev/shm"):
        way = Path(place).resolve()
        modes = [one.stat().st_mode for one in (way, *way.parents) if one.exists()]
        if os.access(way, os.W_OK) and not any(mode & 0o022 and not mode & 0o1000 for mode in modes):
            return place
    sys.exit(refuse(f"others can write to {tempfile.gettempdir()}; set TMPDIR to a folder of yours"))


def refuse(reason: str) -> int:
    print(f"prony: nothing is run: {reason}", file=sys.stderr)
    return 2


def start(node: str, node_hash: str, file: str, file_hash: str, *words: str) -> None:
    program, content = read(node, node_hash), read(file, file_hash) if file else b""
    with tempfile.TemporaryDirectory(prefix=PLACE, dir=safe_place()) as place:
        own = Path(place, "node.zip")
        own.write_bytes(program)
        sys.path.insert(0, str(own))
        from prony_node.contract.cache import hold, remove_temporary

        remove_temporary(own.parent.parent, PLACE)
        hold(own.parent)
        before = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = f"{own}{os.pathsep}{before}" if before else str(own)  # for what it starts
        with tempfile.TemporaryFile() as given:
            given.write(content)
            given.seek(0)
            os.dup2(given.fileno(), 0)
        sys.argv[1:] = words
        runpy.run_module("prony_node", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    start(*sys.argv[1:])
