#!/bin/bash
# Install what workloads need, in an image. install.sh CONSTRAINTS TORCH, where TORCH is
#   keep   the base's own torch stays, and everything beside it fits it
#   none   nothing is installed: Python and torch are mounted when the image is used
#   pip    torch and torchvision from wherever this pip takes them, at the versions of CONSTRAINTS
set -euo pipefail
constraints=$1 torch=$2
libraries=(timm transformers segmentation-models-pytorch scipy nvidia-ml-py)

if [ "$torch" = none ]; then
    exit 0
fi
pins=$(mktemp)
if [ "$torch" = keep ]; then
    # What torch was built with must stay: its own versions are the pins, ours are left out.
    grep -vEi '^(torch|torchvision|numpy|pillow|scipy|triton|nvidia-.*)==' "$constraints" >"$pins"
    python3 -m pip list --format=freeze | grep -Ei '^(torch|torchvision|numpy|pillow|scipy|triton)==' \
        | sed -E 's/^([^=]+)==.*/\1/' | while read -r name; do
            python3 -c 'import sys, importlib.metadata as m; print(f"{sys.argv[1]}=={m.version(sys.argv[1])}")' "$name"
        done >>"$pins"
else
    cp "$constraints" "$pins"
    libraries+=(torch torchvision)
fi
python3 -m pip install --no-cache-dir --constraint "$pins" "${libraries[@]}"
rm -f "$pins"
python3 -c 'import torch, torchvision, timm, transformers; print("torch", torch.__version__)'
