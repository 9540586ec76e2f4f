"""The wall between the two programs, and which room may import which."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

SRC = Path(__file__).parents[2] / "src"

# What each room may import of its own program, as the design says; its own room goes without saying.
NODE_ROOMS = {
    "contract": set(),
    "stats": set(),
    "measure": {"contract", "stats"},
    "nvml": set(),
    "power": {"contract", "nvml", "stats"},
    "facts": {"contract", "nvml"},
    "parallel": {"contract", "nvml"},
    "data": {"contract"},
    "workloads": {"contract", "data", "parallel", "backends"},
    "backends": {"contract", "measure", "facts", "data", "parallel", "workloads"},
    "run": {"contract", "stats", "measure", "power", "facts", "parallel", "workloads", "backends"},
    "__main__": {"contract", "data", "facts", "power", "run"},
    "__init__": set(),
}
CONTROLLER_ROOMS = {
    "catalog": set(),
    "document": set(),
    "study": {"catalog", "document"},
    "sites": {"document"},
    "store": set(),
    "analysis": {"catalog"},
    "report": {"analysis"},
    "engine": {"catalog", "study", "sites", "store", "analysis", "report"},
    "api": {"engine", "study", "sites", "store", "analysis"},
    "cli": {"__init__", "api", "engine", "catalog", "study", "sites", "store", "analysis", "report"},
    "__main__": {"cli"},
    "__init__": {"api", "engine"},  # offered by name, imported when first used
}
# What each room of the controller may see of the node besides the contract, which all share.
SEEN_OF_NODE: dict[str, set[str]] = {
    "catalog": set(),
    "document": set(),
    "study": {"stats", "workloads"},
    "sites": set(),
    "store": set(),
    "analysis": {"stats"},
    "report": set(),
    "engine": {"workloads"},
    "api": {"workloads"},
    "cli": {"stats", "workloads"},
    "__main__": set(),
    "__init__": {"__init__"},  # the version
}
NODE_LIBRARIES = {
    "torch", "torchvision", "timm", "safetensors", "tokenizers", "transformers", "segmentation_models_pytorch",
    "pynvml", "triton", "numpy", "PIL", "scipy",
}  # fmt: skip
KERNELS = "_kernels.py"  # files of Triton code, which take it at their top and are themselves imported where used
CONFIG = "config.py"  # what workloads are, torch-free: config.py, and one such file per family, as image_config.py
# Rooms that import no framework when they are imported, so that another one can take torch's place.
WITHOUT_TORCH = ("contract", "stats", "nvml", "measure", "run", "power", "facts", "__main__", "__init__")
# What a run knows of the backends: the door, and what it asks for.
DOOR = {"prony_node.backends", "prony_node.backends.protocol"}
BEHIND_THE_DOOR = "prony_node.backends.torch.framework"  # imported without torch, which may be missing


@dataclass(frozen=True)
class Import:
    file: Path
    line: int
    name: str
    lazy: bool  # inside a function, so only when it is called
    typing_only: bool

    @property
    def top(self) -> str:
        return self.name.partition(".")[0]

    @property
    def room(self) -> str:
        """Which room of src this import stands in."""
        parts = self.file.relative_to(SRC).with_suffix("").parts
        return parts[1]

    def target_room(self) -> str:
        parts = self.name.split(".")
        return parts[1] if len(parts) > 1 else "__init__"

    def __str__(self) -> str:
        return f"{self.file.relative_to(SRC)}:{self.line} imports {self.name}"


def imports_of(package: str) -> list[Import]:
    found = []
    for path in sorted((SRC / package).rglob("*.py")):
        found += list(_walk(ast.parse(path.read_text(encoding="utf-8")), path, False, False))
    assert found, f"no imports in {SRC / package}: the walk is broken"
    return found


def _walk(node: ast.AST, path: Path, lazy: bool, typing_only: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield Import(path, child.lineno, alias.name, lazy, typing_only)
        elif isinstance(child, ast.ImportFrom):
            for name in _absolute(child, path):
                yield Import(path, child.lineno, name, lazy, typing_only)
        else:
            inside = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            typing = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
            yield from _walk(child, path, lazy or inside, typing_only or typing)


def _absolute(node: ast.ImportFrom, path: Path) -> list[str]:
    """The modules of a `from` import: `from prony_node import facts` is an import of that room."""
    base = node.module or ""
    if node.level:
        package = path.relative_to(SRC).with_suffix("").parts[: -node.level]
        base = ".".join([*package, *([node.module] if node.module else [])])
    if base not in ("prony", "prony_node") and not base.endswith(".workloads"):
        return [base]
    return [f"{base}.{alias.name}" if _is_module(f"{base}.{alias.name}") else base for alias in node.names]


def _is_module(name: str) -> bool:
    path = SRC.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


NODE = imports_of("prony_node")
CONTROLLER = imports_of("prony")


def test_the_controller_never_imports_torch_or_a_model_library() -> None:
    assert [str(found) for found in CONTROLLER if found.top in NODE_LIBRARIES] == []


def test_the_controller_sees_only_contract_stats_and_torch_free_configs() -> None:
    wrong = []
    for found in CONTROLLER:
        if found.top != "prony_node":
            continue
        is_seen = found.target_room() in {"contract", *SEEN_OF_NODE[found.room]}
        is_config = found.name == "prony_node.workloads" or f"{found.name.rpartition('.')[2]}.py".endswith(CONFIG)
        if not is_seen or (found.target_room() == "workloads" and not is_config):
            wrong.append(str(found))
    assert wrong == []


def test_the_node_never_imports_the_controller() -> None:
    assert [str(found) for found in NODE if found.top == "prony"] == []


def test_the_node_needs_the_standard_library_and_torch_alone() -> None:
    known = {*sys.stdlib_module_names, "prony_node", "torch"}
    first = [found for found in NODE if not found.lazy]
    kernels = [found for found in first if found.file.name.endswith(KERNELS) and found.top == "triton"]
    assert [str(found) for found in first if found.top not in known and found not in kernels] == []
    assert [str(found) for found in first if f"{found.name.rpartition('.')[2]}.py".endswith(KERNELS)] == []
    assert [str(found) for found in NODE if found.top not in known | NODE_LIBRARIES] == []


def test_only_the_backend_and_what_it_computes_with_import_torch() -> None:
    """The others do not, not even when they are called: JAX or TensorFlow can take torch's place."""
    torch_free = [found for found in NODE if found.room in WITHOUT_TORCH or found.file.name.endswith("config.py")]
    torch_free += [found for found in NODE if found.file.parent == SRC / "prony_node" / "backends"]
    assert [str(found) for found in torch_free if found.top == "torch"] == []


def test_a_run_reaches_torch_through_the_door_alone() -> None:
    seen = [found for found in NODE if found.room in WITHOUT_TORCH and found.target_room() == "backends"]
    wrong = [found for found in seen if found.top == "prony_node" and found.name not in DOOR]
    assert [str(found) for found in wrong] == []


@pytest.mark.parametrize(
    ("imports", "program", "rooms"),
    [(NODE, "prony_node", NODE_ROOMS), (CONTROLLER, "prony", CONTROLLER_ROOMS)],
    ids=["node", "controller"],
)
def test_each_room_imports_only_what_the_design_allows(
    imports: list[Import], program: str, rooms: dict[str, set[str]]
) -> None:
    wrong = []
    for found in imports:
        assert found.room in rooms, f"{found.room} is a room without a line in the design's table"
        if found.top != program or found.target_room() in (found.room, "__init__"):
            continue
        if found.target_room() not in rooms[found.room]:
            wrong.append(str(found))
    assert wrong == []


def test_workloads_see_only_the_task_of_a_backend() -> None:
    seen = {found.name for found in NODE if found.room == "workloads" and found.target_room() == "backends"}
    assert {name for name in seen if name.startswith("prony_node.")} <= {"prony_node.backends.torch.task"}


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    code = f"import sys; sys.path.insert(0, {str(SRC)!r}); {code}"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


def test_help_imports_nothing_heavy() -> None:
    done = run_python(
        "sys.argv = ['prony', '--help']; import prony.cli.main as main\n"
        "try:\n    main.main()\n"
        "except SystemExit as end:\n    assert not end.code, end.code\n"
        "heavy = {'torch', 'sqlalchemy', 'alembic', 'psycopg', 'pyarrow', 'altair', 'vl_convert', 'numpy', 'jinja2'}\n"
        "heavy |= {'prony_node.contract.record', 'prony_node.contract.trial', 'prony.api'}\n"
        "heavy &= set(sys.modules)\n"
        "sys.exit(f'imported: {heavy}' if heavy else 0)"
    )
    assert done.returncode == 0, done.stderr
    assert "sweep" in done.stdout


def test_the_torch_free_side_of_the_node_imports_no_torch() -> None:
    done = run_python(
        "import prony_node.contract, prony_node.stats, prony_node.workloads, prony_node.facts; "
        "import prony_node.run.supervisor, prony_node.run.rank, prony_node.run.run, prony_node.__main__; "
        f"import prony_node.run.questions, {BEHIND_THE_DOOR}; "
        "sys.exit('torch' in sys.modules)"
    )
    assert done.returncode == 0, done.stderr
