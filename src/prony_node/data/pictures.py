"""Made images: a class's pattern under texture, in the sizes and the encoding of a real set."""

from __future__ import annotations

import ctypes
import io
import random
import time
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from prony_node.data.scenes import COCO_SHAPES
from prony_node.data.synthetic import STRUCTURE_SEED

PATTERN = 8  # a class is a pattern of 8x8 colours, stretched over the image
PROBED = 4  # images made to see how long one takes here
GRAINS = (16, 8, 4, 2)  # pixels: coarse grain is stronger, as in photographs


@dataclass(frozen=True)
class Look:
    """What images of a real set look like to whoever reads and decodes them; docs/data.md has the sources."""

    classes: int
    shapes: tuple[tuple[int, int, float], ...]  # width, height, how often
    quality: int
    subsampling: int  # Pillow's number: 0 keeps every colour (4:4:4), 2 a quarter of them (4:2:0)
    texture: float  # strength of the finest grain, set so that files have the real set's mean size
    spread: float  # of that strength between images: one photograph is busier than another
    mean_bytes: int

    def strength(self, chance: random.Random) -> float:
        """Of the finest grain of one image."""
        return self.texture * chance.lognormvariate(-(self.spread**2) / 2, self.spread)


LOOKS = {
    # 147,897,477,120 bytes of ILSVRC2012_img_train.tar for 1,281,167 images, less tar's blocks; mean size 469x387;
    # most are of quality 96 and keep every colour. How often each shape comes is chosen to give those means.
    "imagenet": Look(
        classes=1000,
        shapes=(
            (500, 375, 0.42), (375, 500, 0.14), (500, 333, 0.14), (333, 500, 0.05), (500, 500, 0.05),
            (400, 300, 0.05), (320, 240, 0.05), (250, 188, 0.04), (640, 480, 0.03), (800, 600, 0.02), (1024, 768, 0.01),
        ),
        quality=96,
        subsampling=0,
        texture=3.0,
        spread=0.35,
        mean_bytes=114_700,
    ),
    # 3,843,166,437 bytes for 75,750 training images; no side longer than 512.
    "food101": Look(
        classes=101,
        shapes=((512, 512, 0.60), (512, 384, 0.22), (384, 512, 0.10), (512, 341, 0.05), (512, 288, 0.03)),
        quality=85,
        subsampling=2,
        texture=4.3,
        spread=0.35,
        mean_bytes=50_700,
    ),
    # 19,336,861,798 bytes of train2017.zip for 118,287 images; scenes.py says how often each shape comes.
    "coco": Look(
        classes=80,
        shapes=COCO_SHAPES,
        quality=95,
        subsampling=2,
        texture=6.7,
        spread=0.35,
        mean_bytes=163_500,
    ),
}  # fmt: skip


def class_patterns(classes: int) -> Tensor:
    """The same for every seed: what is to be learned does not change with the samples."""
    structure = torch.Generator().manual_seed(STRUCTURE_SEED)
    return torch.rand(classes, 3, PATTERN, PATTERN, generator=structure) * 200 + 28


def make_image(look: Look, patterns: Tensor, label: int, seed: int) -> bytes:
    """One JPEG, the same for the same seed."""
    chance = random.Random(seed)
    width, height, _ = chance.choices(look.shapes, weights=[shape[2] for shape in look.shapes])[0]
    generator = torch.Generator().manual_seed(seed)
    # The light differs from image to image, so that a mean colour alone does not give the class away.
    image = patterns[label][None] + torch.randn(1, 3, 1, 1, generator=generator) * 20
    return encoded(grained(image, (height, width), look.strength(chance), generator), look)


def grained(image: Tensor, size: tuple[int, int], strength: float, generator: torch.Generator) -> Tensor:
    """The image at that height and width, under grain of several sizes."""
    height, width = size
    for grain in GRAINS:  # coarse grain is added while the image is small, which makes it cheap
        coarse = (-(-height // grain), -(-width // grain))
        image = F.interpolate(image, coarse, mode="bilinear")
        image.add_(torch.randn(1, 3, *coarse, generator=generator), alpha=strength * grain**0.5)
    image = F.interpolate(image, (height, width), mode="bilinear")
    return image.add_(torch.randn(1, 1, height, width, generator=generator), alpha=strength)


def encoded(image: Tensor, look: Look) -> bytes:
    """The JPEG of an image of 1 x 3 x height x width, from 0 to 255."""
    from PIL import Image

    height, width = image.shape[-2:]
    pixels = image[0].clamp_(0, 255).to(torch.uint8).permute(1, 2, 0).contiguous()
    file = io.BytesIO()
    picture = Image.frombytes("RGB", (width, height), ctypes.string_at(pixels.data_ptr(), pixels.nbytes))
    picture.save(file, "JPEG", quality=look.quality, subsampling=look.subsampling)
    return file.getvalue()


def seconds_per_image(look: Look) -> float:
    """How long one takes here, from making a few; by one thread, as the processes that make them all have."""
    patterns = class_patterns(1)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        make_image(look, patterns, 0, 0)  # the first pays for loading
        begun = time.perf_counter()
        for seed in range(PROBED):
            make_image(look, patterns, 0, seed)
        return (time.perf_counter() - begun) / PROBED
    finally:
        torch.set_num_threads(threads)


def require_encoder() -> None:
    try:
        import PIL  # noqa: F401
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("writing JPEGs needs Pillow, which is not installed here", name="PIL") from error
