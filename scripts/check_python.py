"""Say in a sentence, before anything is installed, what this Python lacks."""

import importlib.util
import sys

if sys.version_info < (3, 11):  # noqa: UP036
    sys.exit(f"prony needs Python 3.11 or newer; this is {sys.version.split()[0]}. Try: make run PYTHON=python3.12")
if importlib.util.find_spec("venv") is None or importlib.util.find_spec("ensurepip") is None:
    sys.exit("prony needs Python's venv module; on Debian and Ubuntu: apt-get install python3-venv")
if "--torch" in sys.argv and importlib.util.find_spec("torch") is None:
    sys.exit("TORCH=system keeps the torch of this Python, but it has none. Leave TORCH=system out, or set PYTHON.")
