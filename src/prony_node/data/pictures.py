"""Generated images: classes under texture, COCO scenes with their boxes, Cityscapes scenes with their masks."""

from __future__ import annotations

import ctypes
import io
import math
import random
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from prony_node.data.detection import COCO_SHAPES, Scene, Scenery, draw_scene, painted
from prony_node.data.segmentation import IMAGE_END, IMAGES, LABELS, MASK_END, MASKS, label_id
from prony_node.data.synthetic import STRUCTURE_SEED

PATTERN = 8  # a class is a pattern of 8x8 colours, stretched over the image
PROBED_IMAGES = 4  # images made to see how long one takes here
GRAINS = (16, 8, 4, 2)  # pixels: coarse grain is stronger, as in photographs


@dataclass(frozen=True)
class PictureStyle:
    """What images of a real set look like; results/notes/generated-data.md has the sources."""

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
    "imagenet": PictureStyle(
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
    "food101": PictureStyle(
        classes=101,
        shapes=((512, 512, 0.60), (512, 384, 0.22), (384, 512, 0.10), (512, 341, 0.05), (512, 288, 0.03)),
        quality=85,
        subsampling=2,
        texture=4.3,
        spread=0.35,
        mean_bytes=50_700,
    ),
    # 19,336,861,798 bytes of train2017.zip for 118,287 images; COCO_SHAPES says how often each shape comes.
    "coco": PictureStyle(
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


def make_image(look: PictureStyle, patterns: Tensor, label: int, seed: int) -> bytes:
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


def encoded(image: Tensor, look: PictureStyle) -> bytes:
    """The JPEG of an image of 1 x 3 x height x width, from 0 to 255."""
    from PIL import Image

    height, width = image.shape[-2:]
    pixels = image[0].clamp_(0, 255).to(torch.uint8).permute(1, 2, 0).contiguous()
    file = io.BytesIO()
    picture = Image.frombytes("RGB", (width, height), ctypes.string_at(pixels.data_ptr(), pixels.nbytes))
    picture.save(file, "JPEG", quality=look.quality, subsampling=look.subsampling)
    return file.getvalue()


def seconds_per_image(look: PictureStyle) -> float:
    """How long one takes here, from making a few; by one thread, as the processes that make them all have."""
    patterns = class_patterns(1)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        make_image(look, patterns, 0, 0)  # the first pays for loading
        begun = time.perf_counter()
        for seed in range(PROBED_IMAGES):
            make_image(look, patterns, 0, seed)
        return (time.perf_counter() - begun) / PROBED_IMAGES
    finally:
        torch.set_num_threads(threads)


def require_encoder() -> None:
    try:
        import PIL  # noqa: F401
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("writing JPEGs needs Pillow, which is not installed here", name="PIL") from error


# COCO's 80 categories have these numbers: eleven more were planned, and never annotated.
COCO_NUMBERS = tuple(number for number in range(1, 91) if number not in (12, 26, 29, 30, 45, 66, 68, 69, 71, 83))
LIGHT = 12  # deviation of the light between images, of 255


def made_scene(scenery: Scenery, classes: int, seed: int) -> Scene:
    """The same for the same seed; a label of it is the place of a category, from 1 on."""
    return draw_scene(scenery, classes + 1, random.Random(seed))


def scene_jpeg(look: PictureStyle, scene: Scene, textures: Tensor, seed: int) -> bytes:
    """Boxes in the colours of their classes, in a light of the image's own, under grain as in photographs."""
    chance = random.Random(seed + 1)  # another than the scene was drawn by
    generator = torch.Generator().manual_seed(seed)
    light = torch.randn(1, 3, 1, 1, generator=generator) * LIGHT
    image = grained(light, (scene.height, scene.width), look.strength(chance), generator)
    return encoded(image.add_(painted(scene, textures), alpha=255), look)


def instances(scenes: Iterable[tuple[int, str, Scene]], classes: int) -> dict[str, Any]:
    """The document beside the images, each with its number and file name."""
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for number, name, scene in scenes:
        images.append({"id": number, "file_name": name, "width": scene.width, "height": scene.height})
        for (left, top, right, bottom), label in zip(scene.boxes, scene.labels, strict=True):
            wide, high = right - left, bottom - top
            annotation = {"id": len(annotations) + 1, "image_id": number, "category_id": COCO_NUMBERS[label - 1]}
            outline = [left, top, right, top, right, bottom, left, bottom]
            place = {"bbox": [left, top, wide, high], "area": wide * high, "iscrowd": 0, "segmentation": [outline]}
            annotations.append(annotation | place)
    categories = [{"id": COCO_NUMBERS[at], "name": f"c{at + 1:05d}", "supercategory": "made"} for at in range(classes)]
    return {"images": images, "annotations": annotations, "categories": categories}


Picture = Any  # Pillow's, which is imported where it is used
HEIGHT, WIDTH = 1024, 2048
SCENE_BYTES = 2_310_000  # of an image and its mask; results/notes/generated-data.md has the sources
TOWNS = {"train": 18, "val": 3}  # as many as Cityscapes has
FRAME = 19  # of the thirty that were filmed, which has a mask
PROBED_SCENES = 2  # scenes made to see how long one takes here
TEXTURE = 0.65  # strength of the finest grain, set so that files have the real set's mean size
COMPRESSION = 1  # zlib's: six takes four times as long and saves a tenth

# Shares of the pixels that have a class, in the masks to train (Cordts et al. 2016, and counts of its masks).
SHARES = {
    "road": 0.369, "sidewalk": 0.061, "building": 0.228, "wall": 0.0066, "fence": 0.0088, "pole": 0.0123,
    "traffic light": 0.0021, "traffic sign": 0.0055, "vegetation": 0.159, "terrain": 0.0116, "sky": 0.040,
    "person": 0.0122, "rider": 0.0014, "car": 0.070, "truck": 0.0027, "bus": 0.0024, "train": 0.0023,
    "motorcycle": 0.0010, "bicycle": 0.0041,
}  # fmt: skip
WITH_CLASS = 0.89  # of all pixels; the others are the bonnet of the car that films, the border, and things without one


@dataclass(frozen=True)
class StreetObject:
    """Something that stands in the street: as often as its share and its size give."""

    height: float  # of the image's, the middle one; most lie between two thirds and one and a half of it
    aspect: float  # width by height
    shape: str  # box or ellipse
    raised: float = 0.0  # of the image's height, above the ground
    more: float = 1.0  # painted for what others cover of it


THINGS = {
    "wall": StreetObject(0.12, 3.0, "box", more=2.0),
    "fence": StreetObject(0.11, 3.0, "box", more=2.2),
    "terrain": StreetObject(0.05, 6.0, "ellipse", more=2.5),
    "train": StreetObject(0.25, 1.6, "box", more=1.5),
    "bus": StreetObject(0.2, 1.0, "box", more=1.4),
    "truck": StreetObject(0.17, 1.0, "box", more=1.35),
    "car": StreetObject(0.12, 1.3, "box", more=1.35),
    "motorcycle": StreetObject(0.07, 0.9, "ellipse", more=1.15),
    "bicycle": StreetObject(0.06, 1.0, "ellipse", more=1.1),
    "rider": StreetObject(0.1, 0.4, "ellipse", more=1.1),
    "person": StreetObject(0.11, 0.38, "ellipse"),
    "pole": StreetObject(0.4, 0.028, "box"),
    "traffic light": StreetObject(0.045, 0.45, "box", raised=0.25),
    "traffic sign": StreetObject(0.045, 0.9, "ellipse", raised=0.2),
}
UNLABELLED = {"static": 0.02, "dynamic": 0.005, "ground": 0.01, "parking": 0.01}  # shares of all pixels

SPREAD = 0.3  # of the logarithm of a thing's height
SPREAD_AREA = math.exp(2 * SPREAD**2)  # what that adds to the mean area


class Painter:
    """Paints label ids, in coordinates of the image's height: a picture is one high and two wide."""

    def __init__(self, chance: random.Random, height: int, width: int) -> None:
        from PIL import Image, ImageDraw

        self.chance = chance
        self.scale = height
        self.wide = width / height
        self.mask = Image.new("L", (width, height), label_id("building"))
        self._draw: Any = ImageDraw.Draw(self.mask)
        self.horizon = chance.uniform(0.41, 0.48)

    def paint(self) -> Picture:
        self._background()
        self._ground()
        for name, thing in THINGS.items():
            for _ in range(self._count(thing.more * WITH_CLASS * SHARES[name], thing)):
                self._stand(name, thing)
        self._edges()
        return self.mask

    def _background(self) -> None:
        """Houses on either side, sky between them and trees before them."""
        chance, middle = self.chance, self.wide * self.chance.uniform(0.35, 0.65)
        reach = self.wide * chance.uniform(0.04, 0.36)
        self._polygon("sky", (middle - reach, 0), (middle + reach, 0), (middle, chance.uniform(0.15, 0.33)))
        for _ in range(round(chance.lognormvariate(1.6, 0.5))):
            size, x = chance.uniform(0.08, 0.26), chance.uniform(0, self.wide)
            y = self.horizon - chance.uniform(0, 0.3)
            self._ellipse("vegetation", x - size, y - size, x + size, y + 0.9 * size)

    def _ground(self) -> None:
        chance, bottom = self.chance, self.wide
        far = self.wide * chance.uniform(0.4, 0.6)
        self._box("sidewalk", 0, self.horizon, bottom, 1)
        left, right = (chance.uniform(0.4, 0.65) * self.wide for _ in range(2))
        near = chance.uniform(0.54, 0.76)  # where the road has become as wide as the picture
        self._polygon(
            "road", (far - 0.1, self.horizon), (far + 0.1, self.horizon), (far + right, near), (bottom, 1), (0, 1),
            (far - left, near),
        )  # fmt: skip
        for name, share in UNLABELLED.items():
            thing = StreetObject(0.1, 2.0, "ellipse")
            for _ in range(self._count(share, thing)):
                self._stand(name, thing)

    def _edges(self) -> None:
        """What is in every picture: the bonnet below, and pixels at the border that the camera does not show."""
        high = self.chance.uniform(0.07, 0.12)
        self._ellipse("ego vehicle", -0.15 * self.wide, 1 - high, 1.15 * self.wide, 1 + high)
        border = 0.005
        for x, y, right, low in ((0, 0, self.wide, border), (0, 0, border, 1), (self.wide - border, 0, self.wide, 1)):
            self._box("out of roi", x, y, right, low)

    def _count(self, share: float, thing: StreetObject) -> int:
        """How many such things have that share of the picture on average."""
        filled = 0.785 if thing.shape == "ellipse" else 1.0
        area = filled * thing.aspect * thing.height**2 * SPREAD_AREA / self.wide
        expected = share / area
        return int(expected) + (self.chance.random() < expected - int(expected))

    def _stand(self, name: str, thing: StreetObject) -> None:
        """Near things are larger, and stand lower."""
        chance = self.chance
        high = thing.height * chance.lognormvariate(0, SPREAD)
        wide = high * thing.aspect
        ground = min(0.9, self.horizon + 0.02 + high * chance.uniform(0.3, 0.9)) - thing.raised
        left = chance.uniform(0, max(0.0, self.wide - wide))
        paint = self._box if thing.shape == "box" else self._ellipse
        paint(name, left, ground - high, left + wide, ground)

    def _box(self, name: str, *corners: float) -> None:
        left, top, right, low = self._pixels(corners)  # Pillow paints the last row and column too
        self._draw.rectangle((left, top, max(left, right - 1), max(top, low - 1)), fill=label_id(name))

    def _ellipse(self, name: str, *corners: float) -> None:
        self._draw.ellipse(self._pixels(corners), fill=label_id(name))

    def _polygon(self, name: str, *points: tuple[float, float]) -> None:
        self._draw.polygon(self._pixels([part for point in points for part in point]), fill=label_id(name))

    def _pixels(self, parts: Any) -> list[int]:
        return [round(part * self.scale) for part in parts]


def make_scene(seed: int, height: int = HEIGHT, width: int = WIDTH) -> tuple[bytes, bytes]:
    """An image and its mask as PNGs, the same for the same seed."""
    mask = Painter(random.Random(seed), height, width).paint()
    labels = torch.frombuffer(bytearray(mask.tobytes()), dtype=torch.uint8).view(height, width)
    return _png(coloured(labels, seed)), _encoded(mask)


def street_files(split: str, index: int, seed: int) -> tuple[tuple[str, bytes], ...]:
    """An image and its mask under Cityscapes' names; towns of train and val are others."""
    town = f"town{index % TOWNS[split] + (TOWNS['train'] if split == 'val' else 0):02d}"
    scene = f"{split}/{town}/{town}_{index:06d}_{FRAME:06d}"
    image, mask = make_scene(seed)
    return (f"{IMAGES}/{scene}{IMAGE_END}", image), (f"{MASKS}/{scene}{MASK_END}", mask)


def coloured(labels: Tensor, seed: int) -> Tensor:
    """uint8, height x width x 3: each label's colour in the light of this scene, under grain of several sizes."""
    height, width = labels.shape
    generator = torch.Generator().manual_seed(seed)
    light = torch.randn(1, 3, 1, 1, generator=generator) * 20
    image = grained(light, (height, width), TEXTURE, generator)
    pixels = image[0].permute(1, 2, 0) + label_colours()[labels.long()]
    return pixels.clamp_(0, 255).to(torch.uint8).contiguous()


@lru_cache(maxsize=1)
def label_colours() -> Tensor:
    """The same for every seed: what is to be learned does not change with the scenes."""
    structure = torch.Generator().manual_seed(STRUCTURE_SEED)
    return torch.rand(len(LABELS), 3, generator=structure) * 200 + 28


def _png(pixels: Tensor) -> bytes:
    from PIL import Image

    height, width = pixels.shape[:2]
    return _encoded(Image.frombytes("RGB", (width, height), ctypes.string_at(pixels.data_ptr(), pixels.nbytes)))


def _encoded(image: Picture) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG", compress_level=COMPRESSION)
    return file.getvalue()


def seconds_per_scene() -> float:
    """How long one takes here, from making a few; by one thread, as the processes that make them all have."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        begun = time.perf_counter()
        for seed in range(PROBED_SCENES):
            make_scene(seed)
        return (time.perf_counter() - begun) / PROBED_SCENES
    finally:
        torch.set_num_threads(threads)
