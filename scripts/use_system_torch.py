"""Let a virtual environment see the packages of the Python that made it: `python use_system_torch.py VENV`.

--system-site-packages alone does not do it where that Python is a virtual environment itself, as in some vendors'
containers: the new one then sees the interpreter behind both, which has no torch.
"""

import subprocess
import sys
from pathlib import Path

import torch

venv = Path(sys.argv[1])
question = "import sysconfig; print(sysconfig.get_path('purelib'))"
answer = subprocess.run([venv / "bin" / "python", "-c", question], capture_output=True, text=True, check=True)
own = Path(answer.stdout.strip())
folders = [path for path in sys.path if path.endswith(("site-packages", "dist-packages")) and Path(path).is_dir()]
(own / "system_torch.pth").write_text("\n".join(folders) + "\n")
print(f"prony: keeping torch {torch.__version__} of {sys.executable}")
