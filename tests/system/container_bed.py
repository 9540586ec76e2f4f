"""Podman with a store of its own, and base images made of Debian's packages: no registry is needed.

Bases lie in a cache outside the checkout ($PRONY_TEST_CACHE, else the account's cache folder): minutes the first time.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path

RELEASE = "bookworm"
MIRROR = "http://deb.debian.org/debian"
# A Python, and what another that is mounted into the container is linked to.
LIBRARIES = (
    "python3-minimal,libpython3-stdlib,libssl3,libffi8,zlib1g,libbz2-1.0,liblzma5,libsqlite3-0,libreadline8,"
    "libstdc++6,libgomp1"
)
PASSWD = "root:x:0:0:root:/root:/bin/bash\n"
EMULATORS = {"arm64": "qemu-aarch64", "amd64": "qemu-x86_64"}
CONFIGURATION = """\
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
[containers]
default_ulimits = ["nofile=20000:20000", "nproc=20000:20000"]
"""


def why_not() -> str | None:
    """Why containers cannot be tested here; None where they can."""
    for program, package in (("podman", "podman"), ("debootstrap", "debootstrap"), ("runc", "runc")):
        if shutil.which(program) is None:
            return f"needs {program} (Debian's package {package})"
    return None if os.geteuid() == 0 else "needs root, to make base images"


def can_emulate(arch: str) -> bool:
    """Whether this kernel runs programs of that architecture, once it has been told how."""
    here = Path("/proc/sys/fs/binfmt_misc")
    if not (here / "register").exists():
        subprocess.run(["mount", "-t", "binfmt_misc", "binfmt_misc", str(here)], check=False, capture_output=True)
    if not (here / EMULATORS[arch]).exists() and shutil.which("update-binfmts"):
        subprocess.run(["update-binfmts", "--enable", EMULATORS[arch]], check=False, capture_output=True)
    return (here / EMULATORS[arch]).exists()


class Podman:
    """Podman whose images and containers lie in one folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "containers.conf").write_text(CONFIGURATION, encoding="utf-8")
        store = f'[storage]\ndriver = "vfs"\ngraphroot = "{folder}/images"\nrunroot = "{folder}/state"\n'
        (folder / "storage.conf").write_text(store, encoding="utf-8")
        self.environment = {
            "CONTAINERS_CONF": str(folder / "containers.conf"),
            "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"),
        }

    def call(self, *words: str, check: bool = True) -> str:
        done = subprocess.run(
            ["podman", *words], env={**os.environ, **self.environment}, capture_output=True, text=True, check=False
        )
        assert not check or done.returncode == 0, f"podman {' '.join(words)}: {done.stderr[-2000:]}"
        return done.stdout

    def import_base(self, arch: str, name: str) -> None:
        self.call("import", "--arch", arch, str(base_archive(arch)), name)

    def architectures(self, name: str) -> list[str]:
        return sorted(
            entry["platform"]["architecture"]
            for entry in json.loads(self.call("manifest", "inspect", name))["manifests"]
        )


def cache() -> Path:
    base = os.environ.get("PRONY_TEST_CACHE") or os.environ.get("XDG_CACHE_HOME") or str(Path("~/.cache").expanduser())
    folder = Path(base) / "prony-tests"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def base_archive(arch: str) -> Path:
    """A Debian without anything of ours, unpacked and not configured: enough for bash and a mounted Python."""
    holds = hashlib.sha256((LIBRARIES + PASSWD).encode()).hexdigest()[:8]
    archive = cache() / f"debian-{RELEASE}-{arch}-{holds}.tar"
    if archive.exists():
        return archive
    folder = cache() / f"debian-{RELEASE}-{arch}.making"
    shutil.rmtree(folder, ignore_errors=True)
    words = ["debootstrap", "--foreign", "--variant=minbase", f"--arch={arch}", f"--include={LIBRARIES}"]
    subprocess.run([*words, RELEASE, str(folder), MIRROR], check=True, stdout=subprocess.DEVNULL)
    for package in sorted((folder / "var/cache/apt/archives").glob("*.deb")):
        subprocess.run(["dpkg-deb", "--extract", str(package), str(folder)], check=True)
    shutil.rmtree(folder / "var/cache/apt/archives")
    if not (folder / "bin/sh").exists():
        (folder / "bin/sh").symlink_to("bash")
    (folder / "etc/passwd").write_text(PASSWD, encoding="utf-8")
    (folder / "tmp").chmod(0o1777)
    temporary = archive.with_suffix(".part")
    subprocess.run(["tar", "--create", f"--file={temporary}", f"--directory={folder}", "."], check=True)
    temporary.replace(archive)
    shutil.rmtree(folder)
    return archive
