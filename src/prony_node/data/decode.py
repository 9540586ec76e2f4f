"""From the bytes of an image to pixels of one size: decoding, cropping and resizing, on the CPU or on the device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from prony_node.contract import RequestError

AREA = (0.08, 1.0)  # share of an image that a random crop takes, and its aspect: Inception's (Szegedy et al. 2014)
LOG_ASPECT = (math.log(3 / 4), math.log(4 / 3))
ATTEMPTS = 10
EVALUATED_SHARE = 0.875  # of the shorter side that a centre crop keeps: 224 of 256
UNNAMED = "an image"  # in a sentence, where its file is not known
GROUP = 64  # images that a device crops together: enough to launch little, not so many that floats fill its memory


@dataclass(frozen=True)
class Crop:
    top: int
    left: int
    height: int
    width: int
    flip: bool


def seed_of(seed: int, epoch: int, index: int) -> int:
    """One number for one sample of one epoch, so that the same crop is drawn whichever worker draws it."""
    return hash((seed, epoch, index)) & (2**63 - 1)


def random_crop(height: int, width: int, generator: torch.Generator) -> Crop:
    """A random part of random aspect, mirrored by chance."""
    flip, *chances = torch.rand(1 + 4 * ATTEMPTS, generator=generator, dtype=torch.float64).tolist()
    for attempt in range(ATTEMPTS):
        area, aspect, at_row, at_column = chances[4 * attempt : 4 * attempt + 4]
        pixels = height * width * (AREA[0] + area * (AREA[1] - AREA[0]))
        ratio = math.exp(LOG_ASPECT[0] + aspect * (LOG_ASPECT[1] - LOG_ASPECT[0]))
        wide, high = round(math.sqrt(pixels * ratio)), round(math.sqrt(pixels / ratio))
        if 0 < wide <= width and 0 < high <= height:
            top, left = int(at_row * (height - high + 1)), int(at_column * (width - wide + 1))
            return Crop(top, left, high, wide, flip < 0.5)
    side = min(height, width)
    return Crop((height - side) // 2, (width - side) // 2, side, side, flip < 0.5)


def centre_crop(height: int, width: int) -> Crop:
    """The middle of an image, as after a resize of its shorter side to 256 of 224."""
    side = max(1, round(EVALUATED_SHARE * min(height, width)))
    return Crop((height - side) // 2, (width - side) // 2, side, side, False)


def crop_for(height: int, width: int, augment: bool, seed: int) -> Crop:
    if not augment:
        return centre_crop(height, width)
    return random_crop(height, width, torch.Generator().manual_seed(seed))


def decode_on_cpu(data: Tensor, size: int, augment: bool, seed: int, where: str = UNNAMED) -> Tensor:
    """uint8, 3 x size x size."""
    image = decoded(data, where)
    crop = crop_for(image.shape[-2], image.shape[-1], augment, seed)
    # Pixel by pixel, as it was decoded, and not plane by plane: torch resizes bytes faster so (benchmarks/decode.py).
    part = cut(image, crop).contiguous(memory_format=torch.channels_last)
    part = F.interpolate(part, (size, size), mode="bilinear", antialias=True)[0]
    return part.flip(-1) if crop.flip else part


def cut(image: Tensor, crop: Crop) -> Tensor:
    """That part of an image, as a batch of one."""
    return image[None, :, crop.top : crop.top + crop.height, crop.left : crop.left + crop.width]


def decoded(data: Tensor, where: str = UNNAMED) -> Tensor:
    """uint8, 3 x height x width; grey becomes three colours, and what shines through is left out."""
    image = _pixels(data, where, "RGB")
    if image.dtype != torch.uint8:
        raise RequestError(f"{where} has 16 bits a colour: expected 8")
    return image


def decoded_as_it_is(data: Tensor, where: str) -> Tensor:
    """Channels x height x width, with the channels and bits that the file has."""
    return _pixels(data, where, "UNCHANGED")


def _pixels(data: Tensor, where: str, mode: str) -> Tensor:
    from torchvision.io import ImageReadMode, decode_image

    try:
        return decode_image(data, ImageReadMode[mode])
    except RuntimeError as error:
        first = str(error).split("\n", 1)[0]
        raise RequestError(f"{where} ({len(data):,} bytes) cannot be decoded: {first}") from error


def decode_on_device(
    images: Sequence[Tensor], size: int, augment: bool, seeds: Sequence[int], device: torch.device
) -> Tensor:
    """A batch of encoded images decoded, cropped and resized on the device: uint8, n x 3 x size x size."""
    whole = _decoded_on(images, device)
    shape = (len(whole), 3, size, size)
    batch = torch.empty(shape, dtype=torch.uint8, device=device, memory_format=torch.channels_last)
    for at in range(0, len(whole), GROUP):
        chosen = slice(at, at + GROUP)
        batch[chosen] = _cropped(whole[chosen], size, augment, seeds[chosen])
    if device.type == "cuda":
        # torchvision decodes on a stream of its own, which does not wait for this one: an image whose memory is given
        # back while this stream has yet to read it would be overwritten by the next that is decoded.
        done = torch.cuda.current_stream(device).record_event(torch.cuda.Event(blocking=True))
        done.synchronize()
    return batch


def _cropped(images: Sequence[Tensor], size: int, augment: bool, seeds: Sequence[int]) -> Tensor:
    """Two kernels for each image, to make floats of its part and to resize that, and a few for all of them."""
    crops = [
        crop_for(image.shape[-2], image.shape[-1], augment, seed) for image, seed in zip(images, seeds, strict=True)
    ]
    parts = [
        F.interpolate(cut(image, crop).float(), (size, size), mode="bilinear", antialias=True)
        for image, crop in zip(images, crops, strict=True)
    ]
    every = torch.cat(parts)
    mirrored = torch.tensor([crop.flip for crop in crops], device=every.device).view(-1, 1, 1, 1)
    return torch.where(mirrored, every.flip(-1), every).add_(0.5).clamp_(0, 255)


def _decoded_on(images: Sequence[Tensor], device: torch.device) -> Sequence[Tensor]:
    """By the device's own decoder all at once; one that it cannot take (a PNG, four colours) by the CPU."""
    if device.type != "cuda":
        return [decoded(data).to(device) for data in images]
    from torchvision.io import ImageReadMode, decode_jpeg

    try:
        found: Any = decode_jpeg(list(images), mode=ImageReadMode.RGB, device=device)
        return list(found)
    except RuntimeError:
        return [_one_on_device(data, device) for data in images]


def _one_on_device(data: Tensor, device: torch.device) -> Tensor:
    from torchvision.io import ImageReadMode, decode_jpeg

    try:
        found: Tensor = decode_jpeg(data, mode=ImageReadMode.RGB, device=device)
        return found
    except RuntimeError:
        return decoded(data).to(device)
