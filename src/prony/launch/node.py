"""The node program as the controller starts it: which Python, which command, which environment."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from prony_node.contract.errors import RequestError

FROM_ZIP = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); "
    "from prony_node.__main__ import main; sys.exit(main(sys.argv[1:]))"
)
QUESTION_PATIENCE_S = 300.0  # importing torch from a cold network file system takes minutes


def node_python(environment: Mapping[str, str] = os.environ) -> str:
    """The interpreter that has torch: $PRONY_PYTHON, or the one we run in."""
    return environment.get("PRONY_PYTHON") or sys.executable


def can_start(program: str) -> bool:
    """Whether exec would find this program; a path is tried with the rights of this process, not of its real user."""
    return os.access(program, os.X_OK, effective_ids=True) if os.sep in program else shutil.which(program) is not None


def supervisor_argv(python: str, plan_file: Path, folder: Path) -> list[str]:
    return [python, "-m", "prony_node", str(plan_file), str(folder)]


def node_environment(environment: Mapping[str, str], python: str, shipped: Path | None) -> dict[str, str]:
    """What a node process inherits, with the node program on its path when it has none of its own."""
    changed = dict(environment)
    changed["PYTHONSAFEPATH"] = "1"  # a random.py where the user stands must not shadow Python's
    if shipped is not None:
        kept = environment.get("PYTHONPATH", "")
        changed["PYTHONPATH"] = os.pathsep.join([str(shipped), *([kept] if kept else [])])
    return changed


def local_environment(root: Path, controller: bool = False) -> dict[str, str]:
    """The environment of a node process on this machine; another interpreter gets the node as a zip."""
    python = node_python()
    shipped = None if _same_interpreter(python) else write_node_zip(root)
    environment = node_environment(os.environ, python, shipped)
    if controller:
        environment["PRONY_CONTROLLER_PID"] = str(os.getpid())
    return environment


def replacing_argv(root: Path) -> list[str]:
    """The node program for a process that becomes it and runs a user's command: its environment stays as it is."""
    python = node_python()
    shipped = None
    if not _same_interpreter(python):
        try:
            shipped = write_node_zip(root)
        except OSError:  # nowhere to put it: ours has no torch, and for what needs none it is as good
            python = sys.executable
    start = [python, "-P"]  # a random.py where the user stands must not shadow Python's
    return [*start, "-c", FROM_ZIP, str(shipped.absolute())] if shipped else [*start, "-m", "prony_node"]


def _same_interpreter(python: str) -> bool:
    # Not resolved: the python of a virtual environment is a link to one that has other packages.
    return os.path.abspath(python) == os.path.abspath(sys.executable)  # noqa: PTH100


def write_node_zip(folder: Path) -> Path:
    """The node program as one file (with nvidia-ml-py beside it), made once for each content."""
    members = {name: source.read_bytes() for name, source in sorted(_node_sources().items())}
    content = hashlib.sha256(repr(sorted(members.items())).encode()).hexdigest()[:12]
    path = folder / f".node-{content}.zip"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".node-{content}.", suffix=".tmp", dir=folder)
        temporary = Path(name)
        try:
            with os.fdopen(handle, "wb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
                for member, source in members.items():
                    archive.writestr(zipfile.ZipInfo(member), source, zipfile.ZIP_DEFLATED)
            temporary.chmod(0o644)  # for others who may write to this root
            temporary.replace(path)
        except OSError:  # a full disk is not to be filled with halves of it
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
    return path


def _node_sources() -> dict[str, Path]:
    with resources.as_file(resources.files("prony_node")) as package:
        found = {f"prony_node/{path.relative_to(package).as_posix()}": path for path in package.rglob("*.py")}
    sensors = importlib.util.find_spec("pynvml")
    if sensors is not None and sensors.origin and sensors.origin.endswith("pynvml.py"):
        found["pynvml.py"] = Path(sensors.origin)
    return found


def ask_node(question: str, root: Path, *words: str) -> dict[str, Any]:
    """The answer of `python -m prony_node QUESTION WORDS`, for what the controller cannot know without torch."""
    argv = [node_python(), "-m", "prony_node", question, *words]
    try:
        with _question_environment(root) as environment:
            done = subprocess.run(
                argv,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=QUESTION_PATIENCE_S,
                check=False,
            )
        answer: dict[str, Any] = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        last = done.stderr.strip().splitlines()[-1:] if isinstance(error, ValueError) else [str(error)]
        raise RequestError(f"{' '.join(argv)} gave no answer: {' '.join(last) or 'it said nothing'}") from error
    return answer


@contextlib.contextmanager
def _question_environment(root: Path) -> Iterator[dict[str, str]]:
    """The environment for a question: where nothing can be put beside the runs, the zip lies elsewhere meanwhile."""
    try:
        environment = local_environment(root)
    except OSError:
        with tempfile.TemporaryDirectory(prefix="prony-node-") as place:
            yield local_environment(Path(place))
        return
    yield environment
