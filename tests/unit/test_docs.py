"""The pages of the documentation: links lead somewhere, paths and names exist, the guide's code runs."""

from __future__ import annotations

import re
import runpy
import subprocess
import types
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from prony.cli.main import make_app
from prony_node.workloads import WORKLOADS
from prony_node.workloads.config import Workload
from prony_node.workloads.image_config import IMAGE_SIZE

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src"
ELSEWHERE = runpy.run_path(str(ROOT / "scripts" / "build_docs.py"))["ELSEWHERE"]  # pages that lie outside docs
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "results" / "README.md"])
FENCE = re.compile(r"^```[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def links() -> list[tuple[str, str]]:
    found = []
    for path in PAGES:
        prose = FENCE.sub("", path.read_text(encoding="utf-8"))
        targets = re.findall(r"\]\(([^)\s]+)\)", prose) + re.findall(r'(?:src|href)="([^"]+)"', prose)
        found += [(path.relative_to(ROOT).as_posix(), target) for target in targets]
    return found


@pytest.mark.parametrize(("page", "target"), links())
def test_a_relative_link_leads_somewhere(page: str, target: str) -> None:
    if re.match(r"[a-z]+:", target):
        return
    name, _, anchor = target.partition("#")
    goal = (ROOT / page).parent / name if name else ROOT / page
    assert goal.exists(), f"{page} links to {target}"
    if anchor:
        headings = re.findall(r"^#+ (.+)$", goal.read_text(encoding="utf-8"), re.MULTILINE)
        anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
        assert anchor in anchors, f"{page} links to {target}"


def code_spans(page: str) -> list[str]:
    return sorted(set(re.findall(r"`([^`\n]+)`", FENCE.sub("", read(page)))))


@pytest.mark.parametrize("span", code_spans("ARCHITECTURE.md"))
def test_every_path_and_name_in_the_architecture_exists(span: str) -> None:
    if span.startswith(("prony run", "PRONY_")):
        return
    if "/" in span or (ROOT / span).exists():
        assert (ROOT / span).exists()
    elif re.fullmatch(r"prony(_node)?(\.\w+)*", span):
        path = SRC.joinpath(*span.split("."))
        assert path.is_dir() or path.with_suffix(".py").is_file()
    elif span.endswith((".py", ".json", ".md")):
        assert span in ("config.py", "plan.json", "record.json", "supervisor.json")
    else:
        name = span.removesuffix("()")
        assert any(re.search(rf"^(class|def) {name}\b", text, re.MULTILINE) for text in sources()), f"no {span} in src"


def sources() -> Iterator[str]:
    return (path.read_text(encoding="utf-8") for path in SRC.rglob("*.py"))


@pytest.mark.parametrize("page", [path.relative_to(ROOT).as_posix() for path in PAGES])
def test_paths_of_this_repository_exist(page: str) -> None:
    made_by_reader = {"src/prony_node/workloads/lenet.py"}
    spans = [span for span in code_spans(page) if re.match(r"(src|tests|docs|benchmarks|scripts)/[\w./-]+$", span)]
    assert [span for span in spans if not (ROOT / span).exists() and span not in made_by_reader] == []


def test_every_room_has_its_line_in_the_architecture() -> None:
    rooms = {path.parent for path in SRC.glob("prony*/*/__init__.py")}
    text = read("ARCHITECTURE.md")
    assert {str(room) for room in rooms if f"| `{room.relative_to(ROOT).as_posix()}` |" not in text} == set()


def test_the_commands_of_the_guide_to_contributing_are_real() -> None:
    """A newcomer's first command must not fail: its targets, files and tests exist."""
    text = read("CONTRIBUTING.md")
    shown = [line.partition("#")[0] for block in FENCE.findall(text) for line in block.splitlines()]
    shown += [span for span in code_spans("CONTRIBUTING.md") if " " in span]
    targets = {word for line in shown if line.startswith("make ") for word in line.split()[1:] if "=" not in word}
    assert {"setup-dev", "docs", "lint", "types", "test", "test-containers", "test-kubernetes"} == targets
    assert [one for one in targets if not re.search(rf"^{one}:", read("Makefile"), re.MULTILINE)] == []
    paths = [word for line in shown for word in line.split() if re.match(r"(tests|scripts|[.]ci)/", word)]
    assert len(paths) >= 5
    assert [path for path in paths if not (ROOT / path).exists()] == []
    assert "test_every_path_and_name_in_the_architecture_exists" in read("tests/unit/test_docs.py")  # -k architecture


def test_every_page_is_in_the_navigation_of_the_site_once() -> None:
    """Zensical warns neither of a page that no menu has nor of an entry without a page."""
    named = re.findall(r'= "([\w/.-]+\.md)"', read("zensical.toml"))
    pages = [path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")]
    pages += [page.removeprefix("docs/") for page in ELSEWHERE.values() if page != "docs/index.md"]
    assert sorted(named) == sorted(pages)


def test_the_readme_has_its_sections() -> None:
    text = read("README.md")
    headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert headings == ["Two commands", "Results on an H200", "Four questions", "Read next"]
    assert text.index("docs/img/report.png") < text.index("make run") < text.index("<!-- headline -->")
    assert text.index("<!-- headline -->") < text.index("<!-- /headline -->")


def test_the_picture_is_small() -> None:
    assert 0 < (ROOT / "docs/img/report.png").stat().st_size < 300_000


# The guide to a new workload ends in something that runs


def test_the_workload_of_the_guide_is_built_and_trains() -> None:
    torch = pytest.importorskip("torch")
    entry, module = re.findall(r"```python\n(.*?)```", read("docs/developers/add-a-workload.md"), re.DOTALL)
    workload = eval(entry.strip().rstrip(","), {"Workload": Workload, "IMAGE_SIZE": IMAGE_SIZE})
    built = types.ModuleType(workload.module)
    exec(compile(module, "docs/developers/add-a-workload.md", "exec"), built.__dict__)
    task = built.build(workload, {**workload.fixed})
    model = task.model()
    assert sum(parameter.numel() for parameter in model.parameters()) == workload.parameters
    batch = task.sample(torch.Generator().manual_seed(0), 4)
    task.loss(model, batch).backward()
    assert task.predict(model, batch).shape == (4, workload.shape["classes"])
    assert workload.name not in WORKLOADS
    assert workload.module.replace(".", "/") + ".py" in read("docs/developers/add-a-workload.md")


def test_the_site_file_of_the_kubernetes_page_is_taken_as_it_stands(tmp_path: Path) -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", read("docs/how-to/kubernetes.md"), re.DOTALL)
    (tmp_path / "cluster.yaml").write_text(text, encoding="utf-8")
    words = ["run", "gpt-tiny", "--site", str(tmp_path / "cluster.yaml"), "--dry-run"]
    done = CliRunner().invoke(make_app("run"), words)
    assert done.exit_code == 0, done.output
    assert "kind: Job" in done.stdout


# What must not stand in a public repository. Spelt in parts, since this file is searched too.

FORBIDDEN = [
    r"/" + r"work/(main|shared)",
    r"(?<![\w.])/" + r"root/",
    r"/home/" + r"(?!user|USER|someone|me\b)\w+/",
    r"(?<![\w-])(pypi|pypi[.]python)[.]" + "org",
    r"python" + "hosted",
    r"pytorch[.]" + "org/whl",
    r"--(extra-)?index" + "-url",
    r"issues " + "show",
    r"shared/" + r"(design|method|style)[.]md",
    r"[.]library" + "/",
]


def repository_files() -> list[Path]:
    argv = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    try:
        done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    return [ROOT / name for name in done.stdout.split("\0") if name and (ROOT / name).is_file()]


def test_no_file_names_a_private_path_a_package_host_or_a_tool_of_its_makers() -> None:
    pattern = re.compile("|".join(FORBIDDEN))
    assert pattern.search("see /" + "work/shared/x"), "the pattern finds nothing"
    found = []
    for path in repository_files():
        text = path.read_bytes().decode("utf-8", errors="replace")
        for match in pattern.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            found.append(f"{path.relative_to(ROOT)}:{line}: {match.group()}")
    assert found == []
