"""Image classifiers: their task, Prony's own layers, and the models that torchvision or Prony builds."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from prony_node.backends.torch.task import Batch, Task
from prony_node.contract.settings import Value, replicas, uses_kernel
from prony_node.contract.trial import learns_to_quality
from prony_node.data.synthetic import image_sampler
from prony_node.workloads.weights import with_weights

if TYPE_CHECKING:
    from prony_node.workloads.config import Workload


# Prony's own implementations of layers of image models: same functions and parameters, less memory traffic.
#
# Blocks: residual blocks for inference, with bias, shortcut and ReLU inside cuDNN's convolution kernel. The compiler
# leaves convolutions to cuDNN and makes kernels of what follows, which read and write the whole image once more. Where
# cuDNN has no such kernel (another device, 32 bits, another layout) the same is done step by step.
#
# Stem: the first convolution of a ResNet in a form that suits the matrix units. It has three channels, where the units
# take eight or sixteen, and a stride of two. Four neighbouring pixels of three channels become one place of twelve,
# and the 7x7 weights, padded with a row and a column of zeros, become 4x4.
#
# Norms: batch norm and ReLU in a form whose compiled kernels read less. Torch's batch norm computes mean and variance
# with a division per value; the compiler keeps it. The sums of values and squares, both from one reading, need no
# division. Torch's ReLU finds its gradient from its output, which must be read for that alone; here the sign comes
# from what the batch norm reads anyway. The difference of two sums in fp32 loses digits where a mean is many times the
# deviation: at 30 times, three of seven. In bf16 such values have lost as many before. Flax computes its batch norms
# so by default.
#
# ViT: torch's attention copies queries, keys and values apart and changes the order of dimensions and back; here they
# stay where one product left them. Patches do not overlap, so the convolution that embeds them is one matrix product.
# Under autocast the class token, which is fp32, makes the residual stream fp32, twice the bytes; here it has the
# precision of the layers. Swin: the norm after the patches answers in fp32 under autocast, so the stream of the first
# stage is fp32; here it has the precision of the other stages. Its patches are one matrix product too.


Rectified = Callable[[Tensor, Tensor, Tensor, int, int, int], Tensor]
Joined = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def _rectified(image: Tensor, weight: Tensor, bias: Tensor, stride: int, padding: int, dilation: int) -> Tensor:
    if has_kernel(image):
        pairs = [(each, each) for each in (stride, padding, dilation)]
        return torch.cudnn_convolution_relu(image, weight, bias, *pairs, 1)
    return F.conv2d(image, weight, bias, stride, padding, dilation).relu_()


def _joined(image: Tensor, weight: Tensor, shortcut: Tensor, bias: Tensor) -> Tensor:
    if has_kernel(image):
        return torch.cudnn_convolution_add_relu(image, weight, shortcut, 1.0, bias, (1, 1), (0, 0), (1, 1), 1)
    return F.conv2d(image, weight, bias).add_(shortcut).relu_()


def has_kernel(image: Tensor) -> bool:
    halves = image.dtype in (torch.bfloat16, torch.float16)
    laid_out = image.is_contiguous(memory_format=torch.channels_last)
    return image.is_cuda and torch.version.hip is None and halves and laid_out


@lru_cache(maxsize=1)
def operations() -> tuple[Rectified, Joined]:
    """Made when they are first wanted: torch keeps a table of them. The compiler does not look inside."""
    rectified = torch.library.custom_op("prony::convolution_relu", _rectified, mutates_args=())
    joined = torch.library.custom_op("prony::convolution_add_relu", _joined, mutates_args=())
    rectified.register_fake(F.conv2d)
    joined.register_fake(lambda image, weight, shortcut, bias: F.conv2d(image, weight, bias))
    return rectified, joined


class FusedBlock(nn.Module):
    """In place of torchvision's bottleneck whose batch norms are folded, with its parameters.

    The bias of a shortcut's own convolution is added with that of the last one.
    """

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.conv1, self.conv2, self.conv3 = block.conv1, block.conv2, block.conv3
        self.downsample = block.downsample
        if self.downsample is not None:
            self.conv3.bias = nn.Parameter(self.conv3.bias + self.downsample[0].bias, requires_grad=False)
            self.downsample[0].bias = None
        self._rectified, self._joined = operations()

    def forward(self, image: Tensor) -> Tensor:
        inside = image
        for conv in (self.conv1, self.conv2):
            shape = (conv.stride[0], conv.padding[0], conv.dilation[0])
            inside = self._rectified(inside, conv.weight, conv.bias, *shape)
        shortcut = image if self.downsample is None else self.downsample(image)
        return self._joined(inside, self.conv3.weight, shortcut, self.conv3.bias)


def fuse_blocks(network: nn.Module) -> int:
    """In place, wherever there is such a block; answers how many there were."""
    from torchvision.models.resnet import Bottleneck

    found = [(parent, name, child) for parent in network.modules() for name, child in parent.named_children()
             if isinstance(child, Bottleneck) and _fits_fused_block(child)]  # fmt: skip
    for parent, name, child in found:
        setattr(parent, name, FusedBlock(child))
    return len(found)


def _fits_fused_block(block: nn.Module) -> bool:
    """Norms are folded, and convolutions are square, of one group, the last of them of single pixels."""
    convolutions = [block.conv1, block.conv2, block.conv3]
    norms = [block.bn1, block.bn2, block.bn3]
    if block.downsample is not None:
        convolutions.append(block.downsample[0])
        norms += block.downsample[1:]
    folded = all(isinstance(norm, nn.Identity) for norm in norms)
    return folded and all(conv.groups == 1 and conv.bias is not None for conv in convolutions)


SIDE, CHANNELS = 7, 3
WIDE = 16  # channels, the last four of them zero


class FoldedStem(nn.Module):
    """In place of the convolution, with its parameters; for images whose sides are even."""

    def __init__(self, other: nn.Conv2d) -> None:
        super().__init__()
        self.weight, self.bias = other.weight, other.bias

    def forward(self, images: Tensor) -> Tensor:
        weight = folded(F.pad(self.weight, (1, 0, 1, 0)))
        return F.conv2d(F.pad(folded(images), (2, 1, 2, 1)), weight, self.bias)


def folded(values: Tensor) -> Tensor:
    """Count, 3, high, wide: two by two neighbours become channels, and channels sixteen."""
    count, channels, high, wide = values.shape
    apart = values.reshape(count, channels, high // 2, 2, wide // 2, 2).permute(0, 1, 3, 5, 2, 4)
    flat = apart.reshape(count, channels * 4, high // 2, wide // 2)
    return F.pad(flat, (0, 0, 0, 0, 0, WIDE - channels * 4)).contiguous(memory_format=torch.channels_last)


def fold_stem(network: nn.Module) -> int:
    """In place; answers how many such convolutions there were."""
    found = [(parent, name, child) for parent in network.modules() for name, child in parent.named_children()]
    stems = [
        (parent, name, child)
        for parent, name, child in found
        if isinstance(child, nn.Conv2d) and _fits_folded_stem(child)
    ]
    for parent, name, child in stems:
        setattr(parent, name, FoldedStem(child))
    return len(stems)


def _fits_folded_stem(child: nn.Conv2d) -> bool:
    shape = (child.in_channels, child.kernel_size, child.stride, child.padding, child.dilation, child.groups)
    return shape == (CHANNELS, (SIDE, SIDE), (2, 2), (3, 3), (1, 1), 1)


OVER = (0, 2, 3)  # samples, rows and columns


class SummedNorm(nn.Module):
    """In place of torch's batch norm, with its parameters, statistics and names."""

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor

    def __init__(self, other: nn.BatchNorm2d) -> None:
        super().__init__()
        self.weight, self.bias, self.eps, self.momentum = other.weight, other.bias, other.eps, other.momentum
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            self.register_buffer(name, getattr(other, name))

    def forward(self, images: Tensor) -> Tensor:
        if not self.training:
            mean, variance = self.running_mean, self.running_var
            return F.batch_norm(images, mean, variance, self.weight, self.bias, False, 0.0, self.eps)
        values = images.to(torch.promote_types(images.dtype, torch.float32))
        mean = values.mean(OVER)
        variance = ((values * values).mean(OVER) - mean * mean).clamp_min(0)
        self._note(mean.detach(), variance.detach(), images.numel() // images.shape[1])
        scale = self.weight * torch.rsqrt(variance + self.eps)
        offset = self.bias - mean * scale
        return (values * scale[:, None, None] + offset[:, None, None]).to(images.dtype)

    def _note(self, mean: Tensor, variance: Tensor, values: int) -> None:
        assert self.momentum is not None
        self.num_batches_tracked.add_(1)
        kind = self.running_mean.dtype  # another than fp32 where the whole model has another
        self.running_mean.lerp_(mean.to(kind), self.momentum)
        self.running_var.lerp_((variance * (values / max(1, values - 1))).to(kind), self.momentum)


class SignedReLU(nn.Module):
    """ReLU by the sign of what comes in; what is not a number stays so."""

    def forward(self, images: Tensor) -> Tensor:
        return torch.where(images <= 0, 0, images)


def replace_norms(network: nn.Module) -> int:
    """In place; answers how many batch norms there were. Without one nothing is gained, so nothing is changed."""
    found = [(parent, name, child) for parent in network.modules() for name, child in parent.named_children()]
    norms = [(parent, name, child) for parent, name, child in found if _fits_summed_norm(child)]
    for parent, name, child in norms:
        assert isinstance(child, nn.BatchNorm2d)
        setattr(parent, name, SummedNorm(child).train(child.training))
    for parent, name, child in found:
        if norms and type(child) is nn.ReLU:
            setattr(parent, name, SignedReLU())
    return len(norms)


def _fits_summed_norm(child: nn.Module) -> bool:
    """Torch's own, with everything that it can have."""
    plain = type(child) is nn.BatchNorm2d
    return plain and bool(child.affine and child.track_running_stats) and child.momentum is not None


class PackedAttention(nn.Module):
    """In place of torch's MultiheadAttention for samples in rows, with its parameters."""

    def __init__(self, other: nn.MultiheadAttention) -> None:
        super().__init__()
        self.in_proj_weight, self.in_proj_bias, self.out_proj = other.in_proj_weight, other.in_proj_bias, other.out_proj
        self.heads, self.dropout = other.num_heads, other.dropout

    def forward(self, x: Tensor, _keys: Tensor, _values: Tensor, need_weights: bool = False) -> tuple[Tensor, None]:
        """As the encoder calls it: the three are the same, and nobody looks at the weights."""
        assert not need_weights
        batch, length, width = x.shape
        packed = F.linear(x, self.in_proj_weight, self.in_proj_bias)
        q, k, v = packed.view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4).unbind()
        found = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout if self.training else 0.0)
        return self.out_proj(found.transpose(1, 2).reshape(batch, length, width)), None


class PatchProduct(nn.Module):
    """In place of a convolution whose kernel is its stride, with its parameters."""

    def __init__(self, other: nn.Conv2d) -> None:
        super().__init__()
        assert other.kernel_size == other.stride
        self.weight, self.bias, self.side = other.weight, other.bias, other.kernel_size[0]

    def forward(self, images: Tensor) -> Tensor:
        batch, channels, height, width = images.shape
        rows, columns = height // self.side, width // self.side
        cut = images.view(batch, channels, rows, self.side, columns, self.side).permute(0, 2, 4, 1, 3, 5)
        answer = F.linear(cut.reshape(batch, rows * columns, -1), self.weight.flatten(1), self.bias)
        return answer.transpose(1, 2).unflatten(2, (rows, columns))


def in_autocast_precision(_module: nn.Module, given: tuple[Tensor]) -> tuple[Tensor]:
    """Before the first layer."""
    (x,) = given
    kind = x.device.type
    return (x.to(torch.get_autocast_dtype(kind)),) if torch.is_autocast_enabled(kind) else (x,)


def use_own_vit_parts(network: nn.Module) -> None:
    """In place; the names of parameters stay."""
    network.conv_proj = PatchProduct(network.conv_proj)
    for block in network.encoder.layers:
        block.self_attention = PackedAttention(block.self_attention)
    network.encoder.layers.register_forward_pre_hook(in_autocast_precision)


def use_own_swin_parts(network: nn.Module) -> None:
    """In place; the names of parameters stay."""
    features: Any = network.features
    features[0][0] = PatchProduct(features[0][0])
    features[1].register_forward_pre_hook(in_autocast_precision)


# The task of every image classifier: cross entropy on labelled images.


SGD_RATE = 0.05
SGD_SAMPLES = 256  # its rate is for steps of so many samples
DECAY = 5e-5
# To a quality, with a rate that rises and falls: as for residual networks on CIFAR (He et al. 2015, Zagoruyko 2016),
# in proportion to the step's samples (Goyal et al. 2017) up to where that rule was found to end.
RATE_TO_QUALITY = 0.1
HIGHEST_RATE = 1.6
DECAY_TO_QUALITY = 5e-4
ANSWER_SPREAD = 0.02  # of a last layer's weights, as these models spread those of every other
TINY_CLASSES = 10  # of size=tiny: few enough to be told apart after seconds on a CPU


def image_task(
    model: Callable[[], nn.Module],
    classes: int,
    settings: dict[str, Value],
    *,
    sgd_rate: float | None = None,
    adam_rate: float = 1e-3,
    adamw_decay: float = DECAY,
    for_inference: Callable[[nn.Module], nn.Module] | None = None,
) -> Task:
    """A classifier with these classes; its kernels and `weights` are filled in here, for all."""
    return Task(
        unit="images",
        units_per_sample=1,
        model=with_weights(partial(with_answers, model), settings.get("weights")),
        loss=classification_loss,
        predict=lambda network, batch: network(batch[0]),
        sample=image_sampler(classes, int(settings["image_size"])),
        learning_rate=learning_rate(settings, sgd_rate, adam_rate),
        weight_decay=adamw_decay if settings.get("optimizer") == "adamw" else _decay(settings),
        for_inference=for_inference or fold_batch_norms,
        own_parts=_own_parts(settings),
        scores=classification_scores,
        judged=answer_scores,
    )


def _own_parts(settings: dict[str, Value]) -> Callable[[nn.Module], None] | None:
    own: list[Callable[[nn.Module], object]] = []
    if uses_kernel(settings, "compiled-norms"):
        own.append(replace_norms)
    if uses_kernel(settings, "folded-stem"):
        own.append(fold_stem)
    if uses_kernel(settings, "fused-blocks"):
        own.append(fuse_blocks)

    def replace_all(network: nn.Module) -> None:
        for replace_layers in own:
            replace_layers(network)

    return replace_all if own else None


def with_answers(model: Callable[[], nn.Module]) -> nn.Module:
    """The model with a last layer that answers something: torchvision's ViT starts at zero, which equals any zero."""
    network = model()
    weights = [layer.weight for layer in network.modules() if isinstance(layer, nn.Linear | nn.Conv2d)]
    if weights and not weights[-1].is_meta and not weights[-1].any():
        nn.init.trunc_normal_(weights[-1], std=ANSWER_SPREAD)
    return network


def class_count(settings: dict[str, Value], own: int) -> int:
    """The model's own number of classes, or the one that was asked for or that a data set has."""
    return int(settings.get("classes", own))


def _decay(settings: dict[str, Value]) -> float:
    return DECAY_TO_QUALITY if learns_to_quality(settings) else DECAY


def is_tiny(settings: dict[str, Value]) -> bool:
    return settings.get("size") == "tiny"


def learning_rate(settings: dict[str, Value], sgd_rate: float | None = None, adam_rate: float = 1e-3) -> float:
    """Of the optimizer; smaller steps of SGD take a proportionally smaller one, the full one blows four images up."""
    if settings.get("optimizer", "sgd") != "sgd":
        return adam_rate
    if learns_to_quality(settings):
        return min(HIGHEST_RATE, RATE_TO_QUALITY * _step_samples(settings) / SGD_SAMPLES)
    if sgd_rate is not None:
        return sgd_rate
    return SGD_RATE * min(1.0, _step_samples(settings) / SGD_SAMPLES)


def _step_samples(settings: dict[str, Value]) -> int:
    if settings.get("batch_size", "auto") == "auto":
        return SGD_SAMPLES
    return int(settings["batch_size"]) * int(settings.get("grad_accumulation", 1)) * replicas(settings)


def classification_loss(network: nn.Module, batch: Batch) -> Tensor:
    images, labels = batch
    return F.cross_entropy(network(images), labels)


def classification_scores(network: nn.Module, batch: Batch) -> dict[str, Tensor]:
    return answer_scores(network(batch[0]), batch)


def answer_scores(answer: Tensor, batch: Batch) -> dict[str, Tensor]:
    wide, labels = answer.float(), batch[1]
    right = (wide.argmax(dim=-1) == labels).float()
    return {"accuracy": right, "loss": F.cross_entropy(wide, labels, reduction="none")}


def fold_batch_norms(network: nn.Module) -> nn.Module:
    """The same function with each batch norm folded into the convolution before it.

    In these models a batch norm stands right after its convolution in the module that holds both; the run's
    own check of outputs against the unfolded model would show it if one did not. A kind of batch norm of its own
    (timm's hold their activation) is left alone.
    """
    folded = copy.deepcopy(network).eval()
    for parent in folded.modules():
        names = dict(parent.named_children())
        for conv_name, norm_name in itertools.pairwise(names):
            conv, norm = names[conv_name], names[norm_name]
            follows = type(conv) is nn.Conv2d and type(norm) is nn.BatchNorm2d
            if follows and conv.out_channels == norm.num_features:
                setattr(parent, conv_name, fuse_conv_bn_eval(conv, norm))
                setattr(parent, norm_name, nn.Identity())
    return folded


# WideResNet for small images: wide basic blocks, max-pooling between the stages.


STEM = 16
STAGES = (160, 320, 640)
BLOCKS = 2
TINY_STAGES = (16, 32, 64)


class WideBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Conv2d(inputs, outputs, 1, bias=False) if inputs != outputs else nn.Identity()
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return self.relu(y + self.shortcut(x))


class WideResNet(nn.Module):
    def __init__(self, classes: int, channels: tuple[int, ...] = STAGES, blocks: int = BLOCKS) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, STEM, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(STEM)
        self.relu = nn.ReLU()
        stages: list[nn.Module] = []
        inputs = STEM
        for number, outputs in enumerate(channels):
            if number:
                stages.append(nn.MaxPool2d(2))
            for _ in range(blocks):
                stages.append(WideBlock(inputs, outputs))
                inputs = outputs
        self.stages = nn.Sequential(*stages)
        self.fc = nn.Linear(inputs, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.bn(self.conv(x)))
        x = self.stages(x)
        return self.fc(x.mean((2, 3)))


def build_wideresnet(workload: Workload, settings: dict[str, Value]) -> Task:
    if is_tiny(settings):
        classes = class_count(settings, TINY_CLASSES)
        return image_task(partial(WideResNet, classes, TINY_STAGES, 1), classes, settings, sgd_rate=0.05)
    classes = class_count(settings, workload.shape["classes"])
    return image_task(partial(WideResNet, classes), classes, settings)


# Classifiers as torchvision builds them, and a tiny model of each kind.


CONSTRUCTORS = {
    "resnet50": "resnet50",
    "resnet152": "resnet152",
    "vit-l": "vit_l_16",
    "vit-l-32": "vit_l_32",
    "vit-h": "vit_h_14",
    "swin-t": "swin_t",
    "swin-b": "swin_b",
    "efficientnet-b0": "efficientnet_b0",
    "efficientnet-b4": "efficientnet_b4",
    "mobilenetv3-small": "mobilenet_v3_small",
    "mobilenetv3-large": "mobilenet_v3_large",
}
# Those of vit-l-32 and vit-h by their kin: their own were not tried.
ADAM_RATES = {"vit-l": 3e-5, "vit-l-32": 3e-5, "vit-h": 3e-5, "swin-t": 1e-4, "swin-b": 1e-4}


def build_torchvision(workload: Workload, settings: dict[str, Value]) -> Task:
    task = library_task(workload, settings)
    if uses_kernel(settings, "low-precision-residual"):
        own_parts = use_own_swin_parts if workload.name.startswith("swin") else use_own_vit_parts
        task = replace(task, own_parts=own_parts)
    return task


def library_task(workload: Workload, settings: dict[str, Value]) -> Task:
    """With torchvision's model as it is."""
    from torchvision.models import get_model

    name, size, patch = workload.name, int(settings["image_size"]), workload.shape.get("patch", 0)
    # Adam's usual 1e-3 is for a rate that is warmed up, which a run of a minute is not.
    rates: dict[str, Any] = {}
    if name in ADAM_RATES:
        rates = {"adam_rate": ADAM_RATES[name], "adamw_decay": 0.05}
    if name == "resnet152":  # at SGD's usual rate its loss rises for the first hundreds of steps
        rates = {"sgd_rate": 0.02}
    if name.startswith("mobilenet"):  # its layers start small: at SGD's usual rate a minute's run learns little
        rates = {"sgd_rate": 4 * learning_rate(settings)}
    if is_tiny(settings):
        # Bottlenecks blow up where depthwise convolutions, which start small, have not begun to learn.
        rates = {"sgd_rate": 0.01 if name.startswith("resnet") else 0.05}
        classes = class_count(settings, TINY_CLASSES)
        return image_task(partial(tiny_model, name, size, patch, classes), classes, settings, **rates)
    classes = class_count(settings, workload.shape["classes"])
    sized = {"image_size": size} if patch else {}  # positions are learned, so their number is the model's
    model = partial(get_model, CONSTRUCTORS[name], weights=None, num_classes=classes, **sized)
    return image_task(model, classes, settings, **rates)


def tiny_model(name: str, size: int, patch: int, classes: int = TINY_CLASSES) -> nn.Module:
    """A model of the same kind that a CPU trains in seconds: torchvision's own classes, narrow and shallow."""
    family = name.partition("-")[0]
    if family == "vit":
        return _tiny_vit(size, patch, classes)
    if family == "swin":
        return _tiny_swin({"swin-t": 2, "swin-b": 4}[name], classes)
    if family == "efficientnet":
        return _tiny_efficientnet(*{"efficientnet-b0": (1.0, 1.0), "efficientnet-b4": (1.4, 1.8)}[name], classes)
    if family == "mobilenetv3":
        from torchvision.models import get_model

        tiny: nn.Module = get_model(CONSTRUCTORS[name], weights=None, num_classes=classes, width_mult=0.25,
                                    reduced_tail=True, dropout=0.0)  # fmt: skip
        return tiny
    return _tiny_resnet({"resnet50": [1, 1, 1, 1], "resnet152": [1, 2, 2, 1]}[name], classes)


def _tiny_resnet(blocks: list[int], classes: int) -> nn.Module:
    from torchvision.models.resnet import Bottleneck, ResNet

    class Narrow(Bottleneck):
        expansion = 1  # else a block's output is four times as wide, whatever its inside

    return ResNet(Narrow, blocks, num_classes=classes, width_per_group=32)


def _tiny_vit(size: int, patch: int, classes: int) -> nn.Module:
    from torchvision.models import VisionTransformer

    return VisionTransformer(size, patch, num_layers=2, num_heads=4, hidden_dim=64, mlp_dim=128,
                             num_classes=classes)  # fmt: skip


def _tiny_swin(blocks: int, classes: int) -> nn.Module:
    from torchvision.models import SwinTransformer

    return SwinTransformer([4, 4], embed_dim=32, depths=[2, blocks], num_heads=[2, 4], window_size=[4, 4],
                           stochastic_depth_prob=0.0, num_classes=classes)  # fmt: skip


def _tiny_efficientnet(width: float, depth: float, classes: int) -> nn.Module:
    from torchvision.models import EfficientNet
    from torchvision.models.efficientnet import MBConvConfig

    stages = [(1, 3, 1, 16, 8, 1), (6, 3, 2, 8, 16, 1), (6, 5, 2, 16, 32, 2)]
    scaled = [MBConvConfig(*stage, width, depth) for stage in stages]
    return EfficientNet(scaled, dropout=0.0, stochastic_depth_prob=0.0, num_classes=classes)
