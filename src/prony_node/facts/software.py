"""The software of a result: versions, the state of the working directory, and short hashes of machine and software."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from prony_node import __version__
from prony_node.contract.cache import private_folder
from prony_node.contract.facts import Provenance, SoftwareFacts, SourceFacts
from prony_node.contract.files import canonical_json
from prony_node.contract.plugins import Plugin, code_of_run, installed_code
from prony_node.contract.run_folder import node_source_hash
from prony_node.contract.safe_files import read_plain
from prony_node.contract.typed import JsonObject, encode, stated
from prony_node.facts import device
from prony_node.facts.host import cpu_model, hostname, parse_cpuinfo, parse_meminfo
from prony_node.facts.tree import Missing, Tree, parse_keys

# The software of a result: package and driver versions, and the git state of the working directory.
#
# Versions come from package metadata: nothing is imported to ask for its version.
#
# A repository may be somebody else's, and its configuration names programs: filters, hooks, monitors, remotes that git
# asks for what is missing. So git never sees that configuration. It works in a git directory made here, which leads to
# the objects, refs and index of the repository, and to nothing else.


PACKAGES = (
    "torch", "torchvision", "torchaudio", "triton", "pytorch-triton", "pytorch-triton-rocm",
    "pytorch-triton-xpu", "intel-extension-for-pytorch", "numpy", "timm", "transformers",
    "segmentation-models-pytorch", "scipy",
    "flash-attn", "transformer-engine", "mkl", "nvidia-ml-py", "prony",
)  # fmt: skip
EXPECTED = ("torch", "torchvision", "numpy", "triton", "nvidia-ml-py")  # whose absence is said
FAMILIES = ("nvidia-", "intel-", "rocm")  # CUDA, cuDNN, NCCL and their kin come as wheels with such names


def software_facts(root: Path = Path("/")) -> SoftwareFacts:
    tree, missing = Tree(root), Missing()
    packages = package_versions()
    for name in EXPECTED:
        if name not in packages and not (name == "triton" and any("triton" in found for found in packages)):
            missing.add(f"packages.{name}", "not installed in this Python")
    libc = " ".join(platform.libc_ver()).strip()
    if not libc:
        missing.add("libc", "the interpreter does not say which it was linked with")
    return stated(
        SoftwareFacts,
        python=platform.python_version(),
        implementation=platform.python_implementation(),
        compiler=platform.python_compiler(),
        global_interpreter_lock=not _free_threaded(),
        libc=libc or None,
        prony_node=__version__,
        prony_node_source=node_source_hash(),
        packages=packages,
        drivers=driver_versions(tree),
        plugins=installed_code(),
        missing=tuple(missing.entries),
    )


IMPORTED = (
    "torch", "triton", "torchvision", "timm", "transformers", "segmentation_models_pytorch", "numpy", "scipy",
    "safetensors", "torchao", "flash_attn", "transformer_engine",
)  # fmt: skip


def imported_versions() -> dict[str, str | None]:
    """The libraries that this process has imported, by name, with the version that each states of itself."""
    loaded = {name: sys.modules[name] for name in IMPORTED if name in sys.modules}
    stated = {name: getattr(module, "__version__", None) for name, module in loaded.items()}
    return {name: str(version) if version else package_version(name) for name, version in stated.items()}


def package_version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except (importlib.metadata.PackageNotFoundError, ValueError, OSError):
        return None


def package_versions() -> dict[str, str]:
    """Versions of the packages that matter, by name."""
    versions: dict[str, str] = {}
    try:
        for distribution in importlib.metadata.distributions():
            name = distribution.metadata["Name"] or ""
            name = re.sub(r"[-_.]+", "-", name).lower()
            if name in PACKAGES or name.startswith(FAMILIES):
                versions.setdefault(name, distribution.version)  # the first on the path is the one imported
    except Exception:  # a broken installation of one package hides the rest: ask for each by name
        versions = {name: version for name in PACKAGES if (version := package_version(name))}
    return dict(sorted(versions.items()))


def driver_versions(tree: Tree) -> dict[str, str]:
    """Kernel drivers of accelerators, as far as they are loaded here."""
    drivers: dict[str, str] = {}
    nvidia = parse_nvidia_version(tree.text("/proc/driver/nvidia/version"))
    nvidia = nvidia or tree.text("/sys/module/nvidia/version")
    for name, version in (
        ("nvidia", nvidia),
        ("amdgpu", tree.text("/sys/module/amdgpu/version")),
        ("xe", tree.text("/sys/module/xe/version")),
        ("i915", tree.text("/sys/module/i915/version")),
        ("habanalabs", tree.text("/sys/module/habanalabs/version")),
    ):
        if version:
            drivers[name] = version
    return drivers


def parse_nvidia_version(text: str | None) -> str | None:
    """580.65.06 from `NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build`."""
    match = re.search(r"NVRM version:.*?\s([0-9]+\.[0-9]+(?:\.[0-9]+)?)\s", (text or "") + "\n")
    return match[1] if match else None


def _free_threaded() -> bool:
    enabled = getattr(sys, "_is_gil_enabled", None)
    return enabled is not None and not enabled()


LIMIT_S = 10.0  # for all that git is asked about a folder
LARGEST_NOTE = 2**16  # bytes of .git, HEAD and commondir, where they are files
LARGEST_CONFIGURATION = 2**20  # bytes
COMMON = ("objects", "refs", "packed-refs", "reftable", "info/attributes")  # by all work trees of a repository
IS_SHARED_INDEX = re.compile(r"sharedindex\.[0-9a-f]{40,64}")  # the larger part of an index in two files
MOST_SHARED_INDEXES = 1000  # git removes them after two weeks
# How files are stored. Each value is a word that git understands, never a program.
STORAGE = r"^(core\.(bare|filemode|symlinks|ignorecase|trustctime|checkstat|autocrlf|eol)|extensions\.(objectformat|refstorage))$"  # fmt: skip  # noqa: E501


class _Unknown(Exception):
    """Why something about the repository is not known."""


@dataclass(frozen=True)
class _Repository:
    """A git directory of our own, for the files of a work tree."""

    top: Path
    own: Path
    until: float  # of time.monotonic()

    def ask(self, *arguments: str, given: bytes = b"", nothing: int = 0) -> str:
        """What git answers, or why it does not. `nothing`: how it ends where it finds nothing."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        environment |= {
            # A relative entry, and an empty variable, would mean the work tree.
            "PATH": os.pathsep.join(one for one in os.get_exec_path() if Path(one).is_absolute()) or os.defpath,
            "GIT_DIR": str(self.own), "GIT_WORK_TREE": str(self.top), "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": os.devnull, "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C",
        }  # fmt: skip
        try:
            done = subprocess.run(["git", *arguments], env=environment, cwd=self.top, input=given, capture_output=True,
                                  timeout=max(0.0, self.until - time.monotonic()), check=False)  # fmt: skip
        except FileNotFoundError:
            raise _Unknown("git is not installed") from None
        except subprocess.TimeoutExpired:
            raise _Unknown(f"git did not answer within {LIMIT_S:.0f} s") from None
        except (OSError, ValueError) as error:
            raise _Unknown(f"git could not be started: {error}") from None
        if done.returncode not in (0, nothing):
            complaint = done.stderr.decode("utf-8", "replace").strip().splitlines()
            if any("Needed a single revision" in line for line in complaint):
                raise _Unknown("the repository has no commit yet")
            raise _Unknown(complaint[-1] if complaint else f"git ended with {done.returncode}")
        return done.stdout.decode("utf-8", "surrogateescape")


def source_facts(folder: Path) -> SourceFacts:
    """Commit, branch and whether anything differs from it; no repository is fine, and said."""
    missing = Missing()
    commit: str | None = None
    branch: str | None = None
    dirty: bool | None = None
    described: str | None = None
    try:
        top, git = _find(folder)
        with private_folder("prony-git-") as place:
            repository = _Repository(top, place, until=time.monotonic() + LIMIT_S)
            _prepare(repository, git)
            commit = _line(repository.ask("rev-parse", "--verify", "HEAD"))
            with _noting("branch", missing):
                branch = _branch(repository)
            with _noting("dirty", missing):
                dirty = _is_dirty(repository)
            with _noting("described", missing):
                described = _described(repository)
    except _Unknown as error:
        missing.add("commit", str(error))
    except OSError as error:
        missing.add("commit", f"the repository cannot be read: {error.strerror or error}")
    return stated(SourceFacts, commit=commit, branch=branch, dirty=dirty, described=described,
                  missing=tuple(missing.entries))  # fmt: skip


@contextlib.contextmanager
def _noting(name: str, missing: Missing) -> Iterator[None]:
    """What is not known is missing, with its reason."""
    try:
        yield
    except _Unknown as error:
        missing.add(name, str(error))


def _find(folder: Path) -> tuple[Path, Path]:
    """The top of the work tree around a folder, and its git directory."""
    try:
        here = folder.resolve()
    except (OSError, RuntimeError):  # a folder that is gone, a link to itself
        raise _Unknown("this folder is not in a git repository") from None
    for top in (here, *here.parents):
        git = top / ".git"
        if git.is_dir() and (git / "HEAD").exists():
            return top, git
        if git.is_file():  # of a submodule, or of a further work tree
            said = _note(git)
            if said.startswith("gitdir:"):
                return top, top / said.removeprefix("gitdir:").strip()
    raise _Unknown("this folder is not in a git repository")


def _prepare(repository: _Repository, git: Path) -> None:
    """Fill the git directory made here with links to the data of the real one."""
    shared = git / _note(git / "commondir") if (git / "commondir").is_file() else git
    (repository.own / "HEAD").write_text(_line(_note(git / "HEAD")) + "\n", encoding="utf-8")
    (repository.own / "info").mkdir()
    for name in COMMON:
        _lead(repository.own / name, shared / name)
    for name in ("index", *_shared_indexes(git)):
        _lead(repository.own / name, git / name)
    own = repository.own / "config"
    own.write_text("[core]\n\trepositoryformatversion = 1\n", encoding="utf-8")
    storage = _storage(repository, shared / "config")
    # Further work trees may belong to a repository that has no files of its own.
    if storage.pop("core.bare", "false").lower() in ("true", "yes", "on", "1") and shared == git:
        raise _Unknown("the repository is bare, so it has no files to compare")
    with own.open("a", encoding="utf-8") as file:
        for name, value in storage.items():
            section, _, key = name.partition(".")
            file.write(f"[{section}]\n\t{key} = {value}\n")


def _lead(link: Path, target: Path) -> None:
    if target.exists():
        link.symlink_to(target.absolute())


def _shared_indexes(git: Path) -> list[str]:
    """Names of the shared parts of split indexes. Git sets their times, so no link to another file is one."""
    with os.scandir(git) as entries:
        found = (one for one in entries if IS_SHARED_INDEX.fullmatch(one.name) and one.is_file(follow_symlinks=False))
        return [one.name for one in islice(found, MOST_SHARED_INDEXES)]


def _storage(repository: _Repository, config: Path) -> dict[str, str]:
    """How a repository stores files, by its configuration; where that cannot be read, nothing about it is known."""
    if not os.path.lexists(config):
        return {}
    try:
        # Some tools make it a link to a common configuration.
        given = read_plain(os.path.realpath(config, strict=True), LARGEST_CONFIGURATION)
        told = repository.ask("config", "--file", "-", "--no-includes", "-z", "--get-regexp", STORAGE, given=given, nothing=1)  # fmt: skip  # noqa: E501
    except OSError as error:
        raise _Unknown(f"the configuration of the repository cannot be read: {error.strerror or error}") from None
    except _Unknown as error:
        raise _Unknown(f"the configuration of the repository cannot be read: {error}") from None
    storage = {}
    for entry in told.split("\0"):
        name, is_given, value = entry.partition("\n")
        if not name:
            continue
        if not re.fullmatch("[A-Za-z0-9]*", value):
            raise _Unknown(f"{name} in the configuration of the repository has a value that Prony does not accept")
        storage[name] = value if is_given else "true"
    return storage


def _branch(repository: _Repository) -> str:
    branch = _line(repository.ask("symbolic-ref", "--quiet", "--short", "HEAD", nothing=1))
    if not branch:
        raise _Unknown("HEAD is detached")
    return branch


def _described(repository: _Repository) -> str:
    return _line(repository.ask("describe", "--tags", "--always"))


def _is_dirty(repository: _Repository) -> bool:
    """Whether a tracked file differs from the commit.

    What a filter makes of a file is not known without running it. Git compares such a file only where its size or
    times have changed; where nothing else has, no answer is given. Submodules are passed over: asking each may take
    minutes on a network file system.
    """
    told = repository.ask("status", "--porcelain", "-z", "--no-renames", "--untracked-files=no", "--ignore-submodules=all")  # fmt: skip  # noqa: E501
    changed = [entry for entry in told.split("\0") if entry]
    if any(entry[:2] != " M" for entry in changed):
        return True
    names = "\0".join(entry[3:] for entry in changed)
    if not names:
        return False
    # path, attribute and value, three to a file
    answers = repository.ask("check-attr", "-z", "--stdin", "filter", given=os.fsencode(names) + b"\0").split("\0")[
        2::3
    ]
    if all(value not in ("unspecified", "unset") for value in answers):
        raise _Unknown("files have changed that a git filter stores, and Prony runs no filter of a repository")
    return True


def _note(path: Path) -> str:
    text = read_plain(path, LARGEST_NOTE).decode("utf-8", "surrogateescape").strip()
    if "\0" in text:
        raise _Unknown(f"the repository cannot be read: {path.name} is no text")
    return text


def _line(text: str) -> str:
    return text.strip().encode("utf-8", "replace").decode("utf-8")


# Two short hashes, of the machine and of the software: a finished run is tied to both.
#
# Both must be known before a run, without importing torch, to tell whether its trial is finished. The software's parts
# therefore come from package metadata, torch's version file and the driver. What the rank imported in the end is
# recorded beside them, in the facts.


# Libraries by the part that they are; the first package that is installed counts.
FINGERPRINTED = {
    "torch": ("torch",),
    "cudnn": ("nvidia-cudnn-cu13", "nvidia-cudnn-cu12", "nvidia-cudnn-cu11"),
    "nccl": ("nvidia-nccl-cu13", "nvidia-nccl-cu12", "nvidia-nccl-cu11"),
    "triton": ("triton", "pytorch-triton", "pytorch-triton-rocm", "pytorch-triton-xpu"),
    "torchvision": ("torchvision",),  # decodes images for any workload
}


def fingerprint(root: Path = Path("/"), libraries: Iterable[str] = (), plugin: Plugin | None = None) -> Provenance:
    """The hash of the machine, that of its software, and the parts of the software by name.

    `libraries`: the packages that the workload imports besides torch and torchvision; `plugin`: what adds the workload.
    """
    tree = Tree(root)
    software = software_parts(tree, libraries, plugin)
    return Provenance(_short_hash(encode(machine_identity(tree))), _short_hash(software), software)


def _short_hash(document: JsonObject) -> str:
    return hashlib.sha256(canonical_json(document).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class MachineIdentity:
    """What is hashed of a machine: only what stays the same while nobody changes it."""

    hostname: str | None
    cpu: str | None
    cpus: int
    memory_gib: int | None
    devices: tuple[str, ...]


def machine_identity(tree: Tree) -> MachineIdentity:
    blocks = parse_cpuinfo(tree.text("/proc/cpuinfo"))
    memory_bytes = parse_meminfo(tree.text("/proc/meminfo")).get("MemTotal")
    return MachineIdentity(
        hostname=hostname(tree),
        cpu=cpu_model(blocks, tree.text("/sys/devices/soc0/soc_id")),
        cpus=sum("processor" in block for block in blocks),
        # Whole GiB: the kernel's own share, and with it MemTotal, moves by a little at each boot.
        memory_gib=memory_bytes // 2**30 if memory_bytes is not None else None,
        devices=tuple(device_uuids(tree)),
    )


def software_parts(tree: Tree, libraries: Iterable[str] = (), plugin: Plugin | None = None) -> dict[str, str]:
    """Versions by name, of what is known here before torch is imported."""
    named = {**FINGERPRINTED, **{name: (name,) for name in libraries}}
    versions = {name: next(filter(None, map(package_version, packages)), None) for name, packages in named.items()}
    drivers = driver_versions(tree) or _nvml_driver(tree)
    parts = {
        "prony_node_source": node_source_hash(),
        "python": platform.python_version(),
        **versions,
        **torch_toolkit(),
        **{f"driver_{name}": version for name, version in drivers.items()},
        **{f"plugin_{package}": identity for package, identity in code_of_run(plugin).items()},
    }
    return {name: version for name, version in sorted(parts.items()) if version}


def torch_toolkit() -> dict[str, str]:
    """The CUDA or ROCm that torch was built for, from its version file: importing torch takes seconds."""
    try:
        found = importlib.util.find_spec("torch")
        text = Path(found.origin).with_name("version.py").read_text(encoding="utf-8") if found and found.origin else ""
    except (ImportError, ValueError, OSError):
        return {}
    stated = dict(re.findall(r"^(cuda|hip)\b[^=\n]*=\s*['\"]([^'\"]+)['\"]", text, re.MULTILINE))
    return {{"cuda": "cuda", "hip": "rocm"}[name]: version for name, version in stated.items()}


def device_uuids(tree: Tree) -> list[str]:
    """UUIDs of the accelerators: from the driver's files, from NVML where those say nothing."""
    uuids = proc_uuids(tree)
    if uuids is None:
        uuids = device.nvidia_device_uuids() if tree.live else []
    return sorted(uuids + device.amd_device_uuids(tree))


def proc_uuids(tree: Tree) -> list[str] | None:
    """UUIDs of NVIDIA's devices from /proc; None where it cannot say.

    The driver writes question marks for a device that nobody has opened since boot.
    """
    uuids: list[str] = []
    files = tree.names("/proc/driver/nvidia/gpus/*/information")
    for name in files:
        uuid = parse_keys(tree.text(name)).get("GPU UUID", "")
        if not re.fullmatch(r"GPU-[0-9a-fA-F-]{36}", uuid):
            return None
        uuids.append(uuid)
    return uuids if files else None


def _nvml_driver(tree: Tree) -> dict[str, str]:
    version = device.driver_version() if tree.live else None
    return {"nvidia": version} if version else {}
