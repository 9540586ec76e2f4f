"""The container around the node program: the right flags, values that stay values, and images of the right kind."""

from __future__ import annotations

import http.server
import json
import os
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kubernetes_jobs import make_job, make_run, make_site

from prony.sites.image import (
    Build,
    Unknown,
    architectures_of,
    build_commands,
    check_image,
    read_pins,
    registry_architectures,
    sif_architecture,
    split_image,
)
from prony.sites.jobs import Jobs
from prony.sites.script import container_words
from prony.sites.site import Container, Partition, Site
from prony_node.contract.errors import RequestError

GOLDEN = Path(__file__).parents[3] / "golden" / "containers"
CHECKOUT = Path(__file__).parents[4]
PATHS = ["/scratch/runs", "/home/someone"]


def site(engine: str, image: str = "image", **fields: object) -> Site:
    return Site("here", "local", container=Container(engine, {"": image}, **fields))  # type: ignore[arg-type]


@pytest.mark.parametrize("engine", ["apptainer", "podman", "docker"])
@pytest.mark.parametrize("vendor", ["nvidia", "amd", "intel", "none"])
def test_each_engine_and_vendor_has_its_own_flags(engine: str, vendor: str) -> None:
    made = site(engine, binds=("/data", "/a:/b:ro"), options=("--cleanenv",) if engine == "apptainer" else ())
    words = container_words(made, Partition("", accelerators=4, vendor=vendor), PATHS)
    text = " ".join(words).replace(" --", " \\\n    --") + "\n"
    path = GOLDEN / f"{engine}-{vendor}.txt"
    if os.environ.get("PRONY_GOLDEN") == "write":
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), f"{path} differs; PRONY_GOLDEN=write renews it"


def test_nodes_without_accelerators_get_no_flag_for_them() -> None:
    for engine in ("apptainer", "podman", "docker"):
        words = container_words(site(engine), Partition("", accelerators=0), PATHS)
        assert not {"--nv", "--gpus", "nvidia.com/gpu=all"} & set(words)


def test_no_engine_no_words() -> None:
    assert container_words(Site("here", "local"), Partition(""), PATHS) == []


hostile = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), min_size=1, max_size=30)


@settings(max_examples=40)
@given(image=hostile, bind=hostile, variable=hostile)
def test_hostile_strings_stay_one_word(image: str, bind: str, variable: str) -> None:
    for engine in ("apptainer", "podman", "docker"):
        made = site(engine, image, binds=(bind,))
        made = replace(made, environment=replace(made.environment, variables={"NAME": variable}))
        words = container_words(made, Partition(""), PATHS)
        line = " ".join(words).replace('"$(id -u):$(id -g)"', "1:1")
        seen = shlex.split(line)
        assert seen[-1] == image
        assert bind in seen or f"{bind}:{bind}" in seen
        assert len(seen) == len(words)


def test_values_of_variables_are_not_part_of_the_command() -> None:
    made = site("podman")
    made = replace(made, environment=replace(made.environment, variables={"TOKEN": "secret"}))
    words = container_words(made, Partition(""), PATHS)
    assert "TOKEN" in words
    assert not any("secret" in word for word in words)


def sif(path: Path, code: bytes) -> Path:
    path.write_bytes(
        b"#!/usr/bin/env run-singularity\n".ljust(32, b"\0") + b"SIF_MAGIC\0" + b"01\0" + code + b"\0" * 80
    )
    return path


@pytest.mark.parametrize(("code", "arch"), [(b"02", "amd64"), (b"04", "arm64"), (b"77", "architecture 77")])
def test_a_sif_file_says_for_what_it_is(tmp_path: Path, code: bytes, arch: str) -> None:
    assert sif_architecture(sif(tmp_path / "image.sif", code)) == arch


def test_what_is_no_sif_file_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "image.sif").write_bytes(b"short")
    with pytest.raises(Unknown, match="is no SIF file"):
        sif_architecture(tmp_path / "image.sif")
    with pytest.raises(Unknown, match="cannot be read here: No such file"):
        sif_architecture(tmp_path / "none.sif")


def test_an_image_of_the_wrong_architecture_is_refused_by_both_names(tmp_path: Path) -> None:
    image = sif(tmp_path / "image.sif", b"02")
    text = f"kind: slurm\npartition: gh200\ncontainer: {{engine: apptainer, image: {image}}}\n"
    made = make_site(text + "partitions: {gh200: {arch: aarch64, accelerators: 4}}\n", "jedi")
    job = make_job(made, [make_run(0)], tmp_path / "runs")
    with pytest.raises(
        RequestError, match=r"image.sif is for amd64, and the nodes of jedi, partition gh200, are arm64"
    ):
        Jobs(tmp_path / "runs", print).add([job])
    assert not (tmp_path / "runs").exists(), "nothing is left of a job that was refused"
    sif(image, b"04")
    check_image(job, print)


def test_what_cannot_be_checked_is_a_warning(tmp_path: Path) -> None:
    made = make_site("kind: kubernetes\ncontainer: {image: x}\npartitions: {a: {arch: arm64}}\n")
    warnings: list[str] = []

    def find(image: str, engine: str) -> tuple[str, ...]:
        raise Unknown("nobody knows")

    check_image(make_job(made, [make_run(0)], tmp_path), warnings.append, find)
    assert warnings.pop() == "whether x is for arm64 could not be checked: nobody knows"
    silent = make_site("kind: kubernetes\ncontainer: {image: x}\npartitions: {a: {}}\n", "far")
    check_image(make_job(silent, [make_run(0)], tmp_path), warnings.append, find)
    assert "`arch` in the site file says what the nodes of far, partition a, are" in warnings.pop()


@pytest.mark.parametrize(
    ("image", "parts"),
    [
        ("python", ("registry-1.docker.io", "library/python", "latest")),
        ("docker.io/rocm/pytorch:6", ("registry-1.docker.io", "rocm/pytorch", "6")),
        ("nvcr.io/nvidia/pytorch:25.03-py3", ("nvcr.io", "nvidia/pytorch", "25.03-py3")),
        ("localhost:5000/a/b", ("localhost:5000", "a/b", "latest")),
        ("ghcr.io/a/b:tag@sha256:00", ("ghcr.io", "a/b", "sha256:00")),
    ],
)
def test_an_image_is_taken_apart_as_docker_does(image: str, parts: tuple[str, str, str]) -> None:
    assert split_image(image) == parts


class Registry(http.server.BaseHTTPRequestHandler):
    """A registry that wants a token of anyone, and has an image for one and one for two architectures."""

    def do_GET(self) -> None:
        port = self.server.server_address[1]
        if self.path.startswith("/token"):
            return self._say(200, {"token": "anyone"})
        if self.headers.get("Authorization") != "Bearer anyone":
            realm = f'Bearer realm="http://127.0.0.1:{port}/token",service="here",scope="pull"'
            return self._say(401, {}, {"WWW-Authenticate": realm})
        entries = [{"platform": {"architecture": arch}} for arch in ("amd64", "arm64", "unknown")]
        known: dict[str, object] = {
            "/v2/both/manifests/1": {"manifests": entries},
            "/v2/one/manifests/1": {"config": {"digest": "sha256:00"}},
            "/v2/one/blobs/sha256:00": {"architecture": "arm64"},
            "/v2/garbled/manifests/1": ["no"],
        }
        return self._say(200, known[self.path]) if self.path in known else self._say(404, {})

    def _say(self, status: int, document: object, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(json.dumps(document).encode())

    def log_message(self, format: str, *args: object) -> None:
        """Not into the tests' output."""


@pytest.fixture
def registry() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Registry) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def test_a_registry_says_for_what_an_image_is(registry: str) -> None:
    assert registry_architectures(f"{registry}/both:1", Unknown) == ("amd64", "arm64")
    assert architectures_of(f"docker://{registry}/one:1", "apptainer") == ("arm64",)
    for name in ("missing", "garbled"):
        with pytest.raises(Unknown, match="did not say"):
            registry_architectures(f"{registry}/{name}:1", Unknown)


def test_every_vendor_is_built_from_the_same_pins() -> None:
    pins = read_pins(CHECKOUT)
    assert set(pins) == {"cpu", "nvidia", "rocm"}
    for vendor, pin in pins.items():
        commands = build_commands(Build("podman", vendor, (), "prony"), pins, "amd64")
        assert [command[3] for command in commands] == [f"linux/{arch}" for arch in pin.architectures]
        assert all(f"BASE={pin.base}" in command and f"TORCH={pin.torch}" in command for command in commands)
        (apptainer,) = build_commands(Build("apptainer", vendor, (), "prony"), pins, "amd64")
        assert f"BASE={pin.base}" in apptainer
        assert apptainer[-2:] == ["prony.sif", "containers/prony.def"]


def test_what_cannot_be_built_is_said_with_both_architectures() -> None:
    pins = read_pins(CHECKOUT)
    with pytest.raises(RequestError, match="no rocm base for arm64, only for amd64"):
        build_commands(Build("podman", "rocm", ("arm64",), "prony"), pins, "amd64")
    with pytest.raises(RequestError, match="this one is amd64, and an image for arm64 is wanted"):
        build_commands(Build("apptainer", "cpu", ("arm64",), "prony"), pins, "amd64")
    with pytest.raises(RequestError, match="unknown vendor of images"):
        build_commands(Build("podman", "nvidea", (), "prony"), pins, "amd64")


def test_both_recipes_use_the_same_script_and_arguments() -> None:
    for name in ("Containerfile", "prony.def"):
        text = (CHECKOUT / "containers" / name).read_text(encoding="utf-8")
        assert "BASE" in text
        assert 'install.sh /opt/prony/constraints.txt "' in text
    subprocess.run(["bash", "-n", str(CHECKOUT / "containers" / "install.sh")], check=True)


PYTHON = """\
#!/bin/bash
# a base's Python: it knows what is installed there, notes what pip is asked for, and imports anything
case "$1 ${2:-}" in
    "-m pip") cp "$6" "$SEEN"; printf "%s\\n" "${PIP_CONSTRAINT:-none}" "${@:7}" >"$SEEN.words" ;;
    -c*) ;;
    *) PYTHONPATH=$BASE exec REAL -S "$@" ;;
esac
"""


def install(tmp_path: Path, choice: str, **base: str) -> tuple[list[str], list[str]]:
    """The pins that install.sh gives pip on a base that has these, and the words of pip's command after them."""
    for name, version in base.items():
        (tmp_path / "base" / f"{name}-{version}.dist-info").mkdir(parents=True)
        metadata = tmp_path / "base" / f"{name}-{version}.dist-info" / "METADATA"
        metadata.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", encoding="utf-8")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3").write_text(PYTHON.replace("REAL", sys.executable), encoding="utf-8")
    (tmp_path / "bin" / "python3").chmod(0o755)
    environment = {
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "BASE": str(tmp_path / "base"),
        "SEEN": str(tmp_path / "seen"), "PIP_CONSTRAINT": "/etc/pip/constraint.txt",
    }  # fmt: skip
    words = ["bash", str(CHECKOUT / "containers" / "install.sh"), str(CHECKOUT / "constraints.txt"), choice]
    subprocess.run(words, check=True, env=environment, capture_output=True)
    return (tmp_path / "seen").read_text().split(), (tmp_path / "seen.words").read_text().split()


def test_beside_a_torch_that_stays_so_does_all_that_the_base_has(tmp_path: Path) -> None:
    base = {"torch": "2.6.0+rocm6.4.1", "sympy": "1.13.1", "PyYAML": "6.0.1", "typing_extensions": "4.12.2"}
    pins, words = install(tmp_path, "keep", **base)
    names = {pin.partition("==")[0].lower().replace("_", "-") for pin in pins}
    assert "torch==2.6.0+rocm6.4.1" in pins, "the torch of the base is the one torch"
    assert not {"sympy", "pyyaml", "typing-extensions"} & names, "that torch wants sympy at 1.13.1, and no other"
    assert {"timm", "transformers", "nvidia-ml-py"} <= names, "what the base has not is at our versions"
    assert words[0] == "none", "a base's own file of pins would be added to ours"
    assert "torch" not in words


def test_a_torch_of_pips_is_at_our_version(tmp_path: Path) -> None:
    pins, words = install(tmp_path, "pip", sympy="1.13.1")
    assert {"torch", "torchvision"} <= set(words)
    assert any(pin.startswith("torch==") for pin in pins)
    assert any(pin.startswith("sympy==") for pin in pins)
