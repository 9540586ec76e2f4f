"""If these fail, a record does not name the code that made it, or the same code has two names."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import prony_node
from prony.sites.node import write_node
from prony_node.contract.run_folder import node_source_hash

PACKAGE = Path(prony_node.__file__).parent
ASK = """
import sys
sys.path.insert(0, sys.argv[1])
from prony_node.contract.run_folder import node_source_hash
print(node_source_hash())
"""


def hash_of(place: Path) -> str:
    """The hash as a fresh process states it that imports the package from this folder or zip."""
    done = subprocess.run([sys.executable, "-I", "-c", ASK, str(place)], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_a_folder_a_copy_and_a_zip_have_one_hash(tmp_path: Path) -> None:
    shutil.copytree(PACKAGE, tmp_path / "copy" / "prony_node")  # with compiled files, which are no source
    assert hash_of(tmp_path / "copy") == node_source_hash()
    assert hash_of(write_node(tmp_path / "node.zip")) == node_source_hash()


def test_a_changed_a_new_and_a_renamed_file_are_other_code(tmp_path: Path) -> None:
    package = tmp_path / "prony_node"
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    seen = {hash_of(tmp_path)}
    step = package / "backends" / "torch" / "step.py"
    step.write_text(step.read_text(encoding="utf-8") + "\n# more\n", encoding="utf-8")
    seen.add(hash_of(tmp_path))
    (package / "measure" / "extra.py").touch()
    seen.add(hash_of(tmp_path))
    (package / "measure" / "extra.py").rename(package / "power" / "extra.py")
    seen.add(hash_of(tmp_path))
    assert len(seen) == 4


def test_an_editors_lock_which_is_a_link_to_nothing_is_no_source(tmp_path: Path) -> None:
    shutil.copytree(PACKAGE, tmp_path / "prony_node", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "prony_node" / "measure" / ".#step.py").symlink_to("somebody@host.123")
    assert hash_of(tmp_path) == node_source_hash()
