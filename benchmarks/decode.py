"""What one core pays for an image: decoding, cropping and resizing, as Prony does it and as Pillow would.

    python benchmarks/decode.py [--kind imagenet] [--images 400] [--size 224]

Every image goes through every way, in an order drawn anew for each, so that a slow moment of the machine hits all
alike. Times are of this thread's CPU, not of the clock. A ratio is the geometric mean of those of the images, with its
95 % interval. Then a loader with one worker reads such images from disk, as files and as shards: the worker's CPU time
for each, everything included.
"""

from __future__ import annotations

import argparse
import io
import random
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from PIL import Image
from torchvision.transforms.v2 import functional as transform

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from prony_node.data.dataset import as_tensor
from prony_node.data.generated import generate
from prony_node.data.loader import Crop, Encoded, crop_for, cut, decode_on_cpu, decoded, file_loader
from prony_node.data.pictures import LOOKS, class_patterns, make_image
from prony_node.data.source import open_dataset
from prony_node.stats import between_run

WARM = 20  # images that are not counted
CLASSES = 16
OURS = "all: Prony"


def with_torchvision(data: bytes, size: int, seed: int) -> torch.Tensor:
    """The usual transforms."""
    image = decoded(as_tensor(data))
    crop = crop_for(image.shape[-2], image.shape[-1], True, seed)
    image = transform.resized_crop(image, crop.top, crop.left, crop.height, crop.width, [size, size], antialias=True)
    return transform.horizontal_flip(image) if crop.flip else image


def with_pillow(data: bytes, size: int, seed: int, draft: bool) -> torch.Tensor:
    """Pillow, which may decode at a half or a quarter of the size where the crop is that much too large."""
    picture = Image.open(io.BytesIO(data))
    width, height = picture.size
    crop = crop_for(height, width, True, seed)
    fold = min(crop.height, crop.width) // size
    if draft and fold >= 2:
        picture.draft("RGB", (width // fold, height // fold))
    picture = picture.convert("RGB") if picture.mode != "RGB" else picture
    box = _box(crop, picture.size[0] / width, picture.size[1] / height)
    picture = picture.resize((size, size), Image.Resampling.BILINEAR, box=box, reducing_gap=2.0 if draft else None)
    picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if crop.flip else picture
    return torch.frombuffer(bytearray(picture.tobytes()), dtype=torch.uint8).view(size, size, 3).permute(2, 0, 1)


def _box(crop: Crop, wide: float, high: float) -> tuple[float, float, float, float]:
    return (crop.left * wide, crop.top * high, (crop.left + crop.width) * wide, (crop.top + crop.height) * high)


def ways(files: list[bytes], size: int) -> dict[str, Callable[[int], object]]:
    """What is timed, by name; the whole ones end in a batch, as a worker's do."""
    images = [decoded(as_tensor(data)) for data in files]
    batch = torch.empty((3, size, size), dtype=torch.uint8)

    def crop(at: int) -> Crop:
        return crop_for(images[at].shape[-2], images[at].shape[-1], True, at)

    def resized(at: int) -> object:
        part = crop(at)
        place = (part.top, part.left, part.height, part.width)
        return transform.resized_crop(images[at], *place, [size, size], antialias=True)

    def pixels_of(at: int) -> torch.Tensor:
        return cut(images[at], crop(at)).contiguous(memory_format=torch.channels_last)

    parts = [pixels_of(at) for at in range(len(files))]
    small = [F.interpolate(part, (size, size), mode="bilinear", antialias=True)[0] for part in parts]
    by_pixel = torch.empty((size, size, 3), dtype=torch.uint8).permute(2, 0, 1)
    return {
        "decode alone: torchvision": lambda at: decoded(as_tensor(files[at])),
        "decode alone: Pillow": lambda at: Image.open(io.BytesIO(files[at])).load(),
        "bytes to a tensor": lambda at: as_tensor(files[at]),
        "drawing the crop": crop,
        "cutting it out, pixel by pixel": lambda at: pixels_of(at),
        "resizing it": lambda at: F.interpolate(parts[at], (size, size), mode="bilinear", antialias=True),
        "mirroring it": lambda at: small[at].flip(-1),
        "into a batch, plane by plane": lambda at: batch.copy_(small[at]),
        "into a batch, pixel by pixel": lambda at: by_pixel.copy_(small[at]),
        "resized_crop of torchvision": resized,
        "all: torchvision's transforms": lambda at: batch.copy_(with_torchvision(files[at], size, at)),
        "all: Pillow": lambda at: batch.copy_(with_pillow(files[at], size, at, draft=False)),
        "all: Pillow, draft and reducing_gap": lambda at: batch.copy_(with_pillow(files[at], size, at, draft=True)),
        OURS: lambda at: by_pixel.copy_(decode_on_cpu(as_tensor(files[at]), size, True, at)),
    }


def measure(chosen: dict[str, Callable[[int], object]], images: int) -> dict[str, list[float]]:
    times_s: dict[str, list[float]] = {name: [] for name in chosen}
    order = random.Random(0)
    for at in range(images):
        for name in order.sample(sorted(chosen), len(chosen)):
            begun = time.thread_time()
            chosen[name](at)
            times_s[name].append(time.thread_time() - begun)
    return {name: found[WARM:] for name, found in times_s.items()}


def loader_s(kind: str, form: str, images: int, size: int) -> float:
    """CPU time of a worker for an image, from one pass over a set on disk that was just written, so still in memory."""
    with tempfile.TemporaryDirectory(prefix="prony-decode-") as folder:
        generate(kind, folder, images, form=form, processes=1)
        opened = open_dataset(folder)
        assert isinstance(opened, Encoded)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        batches = file_loader(opened, 64, workers=1, image_size=size, endless=False)
        read = sum(len(labels) for _, labels in batches)
        batches.close()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / read


def handing_over_s(images: int, size: int) -> dict[str, float]:
    """CPU time for an image to have a batch where another process reads it: copied there, and made there."""

    def copied() -> None:
        torch.empty((images, size, size, 3), dtype=torch.uint8).fill_(1).share_memory_()

    def made() -> None:
        memory = torch.empty(0, dtype=torch.uint8)
        memory.set_(torch.UntypedStorage._new_shared(images * size * size * 3)).fill_(1)

    spent = {}
    for name, hand_over in (("handing a batch over: copied", copied), ("handing a batch over: made there", made)):
        began = time.thread_time()
        for _ in range(5):
            hand_over()
        spent[name] = (time.thread_time() - began) / 5 / images
    return spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=sorted(LOOKS), default="imagenet")
    parser.add_argument("--images", type=int, default=400)
    parser.add_argument("--size", type=int, default=224)
    options = parser.parse_args()
    torch.set_num_threads(1)
    patterns = class_patterns(CLASSES)
    count = options.images + WARM
    files = [make_image(LOOKS[options.kind], patterns, seed % CLASSES, seed) for seed in range(count)]
    print(f"{options.kind}: {options.images} images of {sum(map(len, files)) / len(files) / 1e3:.1f} kB on average")
    times_s = measure(ways(files, options.size), count)
    for name, found in times_s.items():
        line = f"{name:<36} {1e3 * sum(found) / len(found):6.2f} ms"
        if name.startswith("all") and name != OURS:
            ratio = between_run([one / ours for one, ours in zip(found, times_s[OURS], strict=True)])
            line += f"   {ratio.mean:.3f} ({ratio.low:.3f} to {ratio.high:.3f}) times ours"
        print(line)
    for name, spent_s in handing_over_s(256, options.size).items():
        print(f"{name:<36} {1e3 * spent_s:6.2f} ms")
    for form in ("files", "shards"):
        spent_s = loader_s(options.kind, form, count, options.size)
        print(f"{f'a worker, reading {form}':<36} {1e3 * spent_s:6.2f} ms")


if __name__ == "__main__":
    main()
