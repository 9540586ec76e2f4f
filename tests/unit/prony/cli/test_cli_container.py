"""`prony container`: what would be built is shown, and a site's images are held against its nodes."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from prony.cli.main import make_app


def call(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(make_app("container"), ["container", *words])
    return done.exit_code, done.output


def sif(path: Path, code: bytes) -> Path:
    path.write_bytes(b"".ljust(32, b"\0") + b"SIF_MAGIC\0" + b"01\0" + code + b"\0" * 80)
    return path


def test_a_dry_run_shows_a_build_for_each_architecture() -> None:
    code, text = call("build", "nvidia", "--tag", "registry.example.org/prony", "--dry-run")
    assert code == 0
    lines = text.splitlines()
    assert len(lines) == 2
    for line, arch in zip(lines, ("amd64", "arm64"), strict=True):
        assert f"podman build --platform linux/{arch} --manifest registry.example.org/prony" in line


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("build", "nvidea", "--dry-run"), "did you mean 'nvidia'?"),
        (("build", "--engine", "dokcer", "--dry-run"), "did you mean 'docker'?"),
        (("build", "--arch", "sparc", "--dry-run"), "unknown architecture 'sparc'"),
        (("build", "rocm", "--arch", "arm64", "--dry-run"), "no rocm base for arm64, only for amd64"),
        (("build", "--checkout", "/nowhere", "--dry-run"), "images are built from a checkout"),
        (("check", "local"), "local uses no container"),
    ],
)
def test_a_mistake_is_a_sentence(words: tuple[str, ...], sentence: str) -> None:
    code, text = call(*words)
    assert code == 2
    assert sentence in text


def test_a_check_names_what_fits_and_what_does_not(tmp_path: Path) -> None:
    image = sif(tmp_path / "one.sif", b"04")
    site = tmp_path / "jedi.yaml"
    partitions = "partitions: {gh200: {arch: arm64, accelerators: 4}, login: {arch: amd64, accelerators: 0}, old: {}}\n"
    site.write_text(f"kind: slurm\npartition: gh200\n{partitions}container: {{engine: apptainer, image: {image}}}\n")
    code, text = call("check", str(site))
    assert code == 1
    assert "pass     gh200" in text
    assert f"fail     login: the image {image} is for arm64, and the nodes of jedi, partition login, are amd64" in text
    assert "unknown  old" in text
    assert call("check", str(site), "--partition", "gh200")[0] == 0
