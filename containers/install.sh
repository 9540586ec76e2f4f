#!/bin/bash
# Install what workloads need, in an image. install.sh CONSTRAINTS TORCH, where TORCH is
#   keep   the base's own torch stays, and so does what else the base has; our pins are for what it has not
#   none   nothing is installed: Python and torch are mounted when the image is used
#   pip    torch and torchvision from wherever this pip takes them, at the versions of CONSTRAINTS
set -euo pipefail
constraints=$1 torch=$2
# With torch and torchvision, what the extra `workloads` of pyproject.toml has.
libraries=(timm transformers segmentation-models-pytorch scipy nvidia-ml-py)

if [ "$torch" = none ]; then
    exit 0
fi
pins=$(mktemp)
if [ "$torch" = keep ]; then
    # torch wants some of what is beside it at one version (sympy), and is built with others (numpy): where the base has
    # a library, our version of it would contradict. What torch is built with may not move at all.
    python3 - "$constraints" >"$pins" <<'END'
import importlib.metadata, re, sys

BUILT_WITH = ("torch", "torchvision", "numpy", "pillow", "scipy", "triton")


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


there = {plain(found.metadata["Name"]): found.version for found in importlib.metadata.distributions()}
for line in open(sys.argv[1], encoding="utf-8"):
    name = plain(re.split(r"[^A-Za-z0-9_.-]", line.strip())[0])
    if name and name not in there:
        print(line.strip())
for name in BUILT_WITH:
    if name in there:
        print(f"{name}=={there[name]}")
END
    unset PIP_CONSTRAINT  # NVIDIA's bases name a file of all that they were made with, which pip would add to ours
else
    cp "$constraints" "$pins"
    libraries+=(torch torchvision)
fi
python3 -m pip install --no-cache-dir --constraint "$pins" "${libraries[@]}"
rm -f "$pins"
python3 -c 'import torch, torchvision, timm, transformers; print("torch", torch.__version__)'
