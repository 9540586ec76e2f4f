"""Apptainer for real: an image built from containers/prony.def, the tiny gpt in it, and its architecture checked.

`make test-containers` runs it where Apptainer is installed; Debian 12 has none. The base comes from a registry in this
process, since the definition takes its base from one, as Apptainer's own users do.
"""

from __future__ import annotations

import gzip
import hashlib
import http.server
import json
import os
import platform
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from container_bed import base_archive
from container_bed import why_not as why_no_base

from prony.sites.site import ARCHITECTURES

HERE = ARCHITECTURES[platform.machine()]
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"


def why_not() -> str | None:
    if not os.environ.get("PRONY_TEST_CONTAINERS"):
        return "takes minutes; `make test-containers` runs it"
    return why_no_base() if shutil.which("apptainer") else "needs apptainer, which Debian 12 has no package of"


REASON = why_not()
pytestmark = [pytest.mark.skipif(REASON is not None, reason=REASON or ""), pytest.mark.slow]


def one_image(archive: Path) -> dict[str, bytes]:
    """The documents and the layer of an image, each by its digest; the manifest by its tag too."""
    found: dict[str, bytes] = {}

    def keep(content: bytes) -> dict[str, object]:
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        found[digest] = content
        return {"digest": digest, "size": len(content)}

    content = archive.read_bytes()
    layers = [f"sha256:{hashlib.sha256(content).hexdigest()}"]
    config = {"architecture": HERE, "os": "linux", "config": {}, "rootfs": {"type": "layers", "diff_ids": layers}}
    manifest = {
        "schemaVersion": 2, "mediaType": MANIFEST,
        "config": {"mediaType": CONFIG, **keep(json.dumps(config).encode())},
        "layers": [{"mediaType": LAYER, **keep(gzip.compress(content, 1))}],
    }  # fmt: skip
    found["1"] = json.dumps(manifest).encode()
    keep(found["1"])
    return found


@pytest.fixture(scope="module")
def base() -> Iterator[str]:
    """The name of a base image in a registry on loopback."""
    content = one_image(base_archive(HERE))

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = self.path.strip("/").split("/")
            body = b"{}" if parts == ["v2"] else content.get(parts[-1])
            self.send_response(200 if body is not None else 404)
            self.send_header("Content-Type", MANIFEST if "manifests" in parts else "application/octet-stream")
            self.send_header("Content-Length", str(len(body or b"")))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body or b"")

        do_HEAD = do_GET

        def log_message(self, format: str, *words: object) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"127.0.0.1:{server.server_address[1]}/prony-base:1"
    server.shutdown()
    thread.join()


def prony(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    # Root of a container may lack this right, which Apptainer would want to hand on.
    environment = {
        **os.environ, "PRONY_RUNS": str(folder / "runs"), "APPTAINER_NOHTTPS": "1",
        "APPTAINER_CACHEDIR": str(folder / "cache"), "APPTAINER_DROP_CAPS": "CAP_SYS_RESOURCE",
    }  # fmt: skip
    if words[:2] == ("container", "build"):
        environment["APPTAINER_USERNS"] = "1"
    return subprocess.run(
        [sys.executable, "-m", "prony", *words], env=environment, cwd=folder, capture_output=True, text=True,
        check=False, timeout=500,
    )  # fmt: skip


def write_site(folder: Path, arch: str) -> str:
    """A site of this machine whose container sees the Python that runs these tests."""
    mounted = sorted({str(Path(place).resolve()) for place in (sys.prefix, sys.base_prefix)})
    path = folder / "boxed.yaml"
    path.write_text(
        f"kind: local\npython: {sys.executable}\npartitions: {{here: {{accelerators: 0, arch: {arch}}}}}\n"
        f"container: {{engine: apptainer, image: {folder / 'prony.sif'}, binds: [{', '.join(mounted)}]}}\n",
        encoding="utf-8",
    )
    return str(path)


def test_the_tiny_gpt_runs_in_an_image_of_the_definition(base: str, tmp_path: Path) -> None:
    words = (
        "container",
        "build",
        "cpu",
        "--engine",
        "apptainer",
        "--torch",
        "none",
        "--tag",
        str(tmp_path / "prony.sif"),
    )
    built = prony(tmp_path, *words, "--base", base)
    assert built.returncode == 0, built.stderr[-3000:]
    site = write_site(tmp_path, HERE)
    checked = prony(tmp_path, "container", "check", site)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "with torch" in checked.stdout
    words = (
        "run",
        "gpt-tiny",
        "device=cpu",
        "batch_size=2",
        "--max-time",
        "5",
        "--no-energy",
        "--json",
        "--site",
        site,
    )
    done = prony(tmp_path, *words)
    assert done.returncode == 0, done.stderr[-3000:]
    record = json.loads(done.stdout)
    assert record["status"] == "ok"
    assert record["facts"]["container"]["runtime"] == "apptainer", record["facts"]["container"]
    other = {"amd64": "arm64", "arm64": "amd64"}[HERE]
    refused = prony(tmp_path, *words[:-1], write_site(tmp_path, other))
    assert refused.returncode == 2
    assert f"is for {HERE}, and the nodes of boxed, partition here, are {other}" in refused.stderr
