"""What every workload states, torch-free: its kernels, its defaults for a device, what it refuses, and its presets."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from prony_node.contract.errors import RequestError, nearest
from prony_node.contract.machine import Machine
from prony_node.contract.settings import (
    DEFAULT,
    DEFAULT_EPOCHS,
    LIBRARY,
    Setting,
    Value,
    check_model,
    devices_of_model,
    fill_batches,
    form_of,
    join_kernels,
    kernel_names,
    parallel_defaults,
    parse_settings,
    parse_target,
)
from prony_node.contract.trial import (
    DATA_SET_ONLY,
    INFERENCE_ONLY,
    LOADER_ONLY,
    TRAINING_ONLY,
    check_combination,
    reads_data_set,
)
from prony_node.data.generated_folder import FILES_ALONE

# The kernels that workloads have in place of their library's implementation of a layer, and where each is a default.
#
# A kernel computes the same function. `kernels=default` turns on what has been shown to pay for the workload, mode,
# precision and device; docs/background/performance.md has the figures.


Where = Literal["", "any", "cuda", "cuda-training", "few"]  # few: in steps of few samples on one CUDA device
Settings = Mapping[str, Value]
ATTENTION_ORDER = ("cudnn", "flash", "efficient")  # cuDNN's kernels are written for Hopper
ATTENTION_NAMES = {f"{name}-attention": name for name in (*ATTENTION_ORDER, "math")}


def _anything(requested: Settings, machine: Machine) -> bool:
    return True


@dataclass(frozen=True)
class Kernel:
    """One implementation of a layer, by a name that says what it is."""

    name: str
    help: str
    default: Where = ""  # where kernels=default has it, of the workload that holds it
    mode: str = ""  # train or infer, where it has no meaning in the other
    devices: tuple[str, ...] = ()  # kinds of device that can run it, where not all can
    part_of: str = ""  # another kernel, without which it has no place
    pays: Callable[[Settings, Machine], bool] = _anything  # as a default, with the settings that were asked for

    @property
    def orders_attention(self) -> bool:
        """Whether it says which of torch's attention kernels is asked first."""
        return self.name in ATTENTION_NAMES

    def by_default(self, where: Where) -> Kernel:
        return replace(self, default=where)

    def is_default(self, requested: Settings, mode: str, machine: Machine, few: bool) -> bool:
        on_cuda = machine.device == "cuda" and requested.get("precision") != "fp64"
        there = {
            "": False, "any": True, "cuda": on_cuda, "cuda-training": on_cuda and mode == "train", "few": few,
        }[self.default]  # fmt: skip
        return there and self.mode in ("", mode) and self.pays(requested, machine)


def _compiled(requested: Settings, machine: Machine) -> bool:
    """What the compiler makes one kernel of."""
    return requested.get("compile") != "off"


def _folds(requested: Settings, machine: Machine) -> bool:
    """A folded stem takes even sides, and lays images out channels last; the compiler folds."""
    even = int(requested.get("image_size", 2)) % 2 == 0
    return even and requested.get("memory_format") != "contiguous" and _compiled(requested, machine)


def _fuses(requested: Settings, machine: Machine) -> bool:
    """What cuDNN joins to a convolution was shown to pay in 16 bits, channels last."""
    halves = requested.get("precision", "bf16") in ("bf16", "bf16-pure", "fp16")
    return halves and requested.get("memory_format") != "contiguous" and not machine.rocm


GPUS = ("cuda", "xpu")
COMPILED_NORMS = Kernel(
    "compiled-norms", "batch norms from sums of values and squares, which the compiler can fuse; ReLU by sign",
    mode="train", pays=_compiled,
)  # fmt: skip
FOLDED_STEM = Kernel(
    "folded-stem", "a ResNet's first convolution on blocks of 2x2 pixels (space to depth)", pays=_folds
)
FUSED_BLOCKS = Kernel(
    "fused-blocks", "bias, residual sum and ReLU fused into cuDNN's convolutions", mode="infer", pays=_fuses
)
LOW_PRECISION_RESIDUAL = Kernel(
    "low-precision-residual",
    "vision transformers: residual stream in the layers' precision, patch embedding as one matrix product, "
    "ViT's attention without copies",
)
MATMUL_UPSAMPLING = Kernel("matmul-upsampling", "gradients of bilinear upsampling as matrix products")
COMPILED_DEPTHWISE = Kernel(
    "compiled-depthwise", "depthwise convolutions as one compiled kernel that reads its input once", pays=_compiled
)
BATCHED_ASSIGNMENT = Kernel(
    "batched-assignment", "anchors and boxes matched for the whole batch, not image by image",
    mode="train",
)  # fmt: skip
TRITON_NMS = Kernel(
    "triton-nms", "non-maximum suppression of proposals as one Triton kernel",
    mode="train", devices=GPUS, part_of=BATCHED_ASSIGNMENT.name,
)  # fmt: skip
MASKED_ROI_ALIGN = Kernel(
    "masked-roi-align", "RoI align on all pyramid levels without synchronising with the host",
    mode="train", part_of=BATCHED_ASSIGNMENT.name,
)  # fmt: skip
TRITON_DEFORMABLE_ATTENTION = Kernel(
    "triton-deformable-attention", "the sampling of deformable attention as one Triton kernel", devices=GPUS
)
ATTENTIONS = tuple(
    Kernel(name, f"scaled dot-product attention: {what} first", devices=("cuda",))
    for name, what in (
        ("cudnn-attention", "cuDNN's kernel"),
        ("flash-attention", "torch's flash attention"),
        ("efficient-attention", "torch's memory-efficient kernel"),
        ("math-attention", "torch's plain matrix products"),
    )
)
CUDNN_BY_DEFAULT = (ATTENTIONS[0].by_default("cuda"), *ATTENTIONS[1:])


def of_mode(kernels: Sequence[Kernel], mode: str) -> tuple[Kernel, ...]:
    return tuple(kernel for kernel in kernels if kernel.mode in ("", mode))


def attention_order(kernels: Sequence[Kernel], settings: Settings) -> tuple[str, ...]:
    """In which order torch's attention kernels are asked on CUDA; none: torch's own order.

    A workload that offers no choice of them has cuDNN's first with preset=fast.
    """
    if not any(kernel.orders_attention for kernel in kernels):
        return ATTENTION_ORDER if settings.get("preset") == "fast" else ()
    asked = kernel_names(settings.get("kernels"))
    first = next((ATTENTION_NAMES[name] for name in asked if name in ATTENTION_NAMES), None)
    if first is None:
        return ()
    return (first,) if first == "math" else tuple(dict.fromkeys((first, *ATTENTION_ORDER)))  # math can do anything


def check_kernels(workload: str, kernels: Sequence[Kernel], settings: Settings) -> None:
    """Refuse a kernel that the workload has not, or that these settings leave no place for."""
    asked = kernel_names(settings.get("kernels"))
    known = {kernel.name: kernel for kernel in kernels}
    mode = str(settings.get("mode", "train"))
    for name in asked:
        if name not in known:
            raise _unknown(workload, name, list(known))
    for name in asked:
        _check_place(known[name], settings, mode, asked)
    attentions = [name for name in asked if name in ATTENTION_NAMES]
    if len(attentions) > 1:
        raise RequestError(f"{' and '.join(attentions)} cannot both be asked first; give one of them")


def _unknown(workload: str, name: str, known: list[str]) -> RequestError:
    if not known:
        return RequestError(f"kernels={name} is not possible: {workload} has its library's alone")
    guess = nearest(name, known)
    hint = f"did you mean {guess}? " if guess else ""
    return RequestError(f"kernels={name} is not possible: {hint}{workload} has {', '.join(known)}")


def _check_place(kernel: Kernel, settings: Settings, mode: str, asked: Sequence[str]) -> None:
    name = kernel.name
    if kernel.mode not in ("", mode):
        raise RequestError(f"kernels={name} has no meaning with mode={mode}; use mode={kernel.mode} or leave it out")
    kind = str(settings.get("device", "auto")).partition(":")[0]
    if kernel.devices and kind != "auto" and kind not in kernel.devices:
        raise RequestError(f"kernels={name} is for device={' or '.join(kernel.devices)}, not {kind}; leave it out")
    if kernel.devices == GPUS and settings.get("precision") == "fp64":
        raise RequestError(f"kernels={name} has its sums in fp32, so it is not possible with precision=fp64")
    if kernel.part_of and kernel.part_of not in asked:
        raise RequestError(f"kernels={name} is a part of {kernel.part_of}; give kernels={kernel.part_of},{name}")
    if name == FUSED_BLOCKS.name and settings.get("preset", "fast") != "fast":
        raise RequestError(f"kernels={name} has batch norms folded, which preset={settings['preset']} keeps")
    if name == FOLDED_STEM.name and int(settings.get("image_size", 2)) % 2:
        raise RequestError(f"kernels={name} takes pixels two by two: give an even image_size, or leave it out")


# What published studies ran: preset=published. A study's settings as far as it states them, torch-free.
#
# Where several ran a workload, this is the one that states most of what one device needs; of its own rows, one on a
# single device where it has one. What it does not state is as in preset=plain: as torch has it.


@dataclass(frozen=True)
class Published:
    """One row of a study."""

    study: str
    place: str  # where in the study, and on what
    data: str  # the data set that it read; give yours as data=PATH
    stated: Mapping[str, Value] = field(default_factory=dict)
    assumed: Mapping[str, Value] = field(default_factory=dict)  # not stated, and other than in preset=plain

    @property
    def settings(self) -> dict[str, Value]:
        return {**self.stated, **self.assumed}

    @property
    def named(self) -> str:
        return f"{self.study}, {self.place}"


CARAML = "CARAML (SC24)"
GH200_GUIDE = "the GH200 tuning guide of Olivia"
HURT = "Hurt et al. (National Research Platform)"
NASARI = "Nasari et al. (PEARC 2022)"
LAMBDA = "Lambda GPU benchmark v2"


def _hurt(place: str, data: str, image_size: int | None = None, batch_size: int | None = None) -> Published:
    """It states neither batch nor precision; the number of parameters says which model and image size it had."""
    stated: dict[str, Value] = {} if image_size is None else {"image_size": image_size}
    assumed: dict[str, Value] = {} if batch_size is None else {"batch_size": batch_size}
    return Published(HURT, f"{place}, one A100 or GH200", data, stated, assumed)


def _megatron(place: str, micro_batch: int, precision: str) -> Published:
    """A GPT of the suite's; its optimizer is Apex's FusedAdam, which Megatron-LM takes for `adam`."""
    return Published(CARAML, f"{place}, Megatron-LM", "OSCAR", {
        "batch_size": micro_batch, "precision": precision, "recompute": "selective", "kernels": "flash-attention",
        "optimizer": "adam", "fused": True, "learning_rate": "1e-4",
    })  # fmt: skip


PUBLISHED: dict[str, Published] = {
    "resnet50": Published(
        CARAML, "chart resnet_1, one GH200, TensorFlow", "ImageNet", {"batch_size": 2048, "precision": "fp16"}
    ),
    "resnet152": _hurt("table I", "CIFAR-100 and Food-101"),
    "vit-l-32": _hurt("table I", "CIFAR-100 and Food-101"),
    # The batch is Prony's: 64 images of this size in fp32 do not fit an H200, 16 take 63 GiB.
    "vit-h": _hurt("table I", "CIFAR-100 and Food-101", image_size=518, batch_size=16),
    "swin-t": _hurt("table I", "CIFAR-100 and Food-101"),
    "swin-b": _hurt("table I", "CIFAR-100 and Food-101"),
    "efficientnet-b0": Published(NASARI, "section 3.2, two A100", "not stated"),
    "efficientnet-b4": Published(NASARI, "table 2, sixteen GC200", "not stated"),
    "mobilenetv3-small": Published(NASARI, "table 2, four GC200", "not stated"),
    "mobilenetv3-large": Published(NASARI, "table 2, sixteen GC200", "not stated"),
    "wideresnet": Published(
        GH200_GUIDE, "test 4, one GH200", "CIFAR-100",
        {"batch_size": 32, "precision": "bf16", "workers": 32, "prefetch": 4}, {"cache": "off"},
    ),  # it reads through loader workers, so the set is not held on the device
    "segformer-b4": _hurt("table II", "Cityscapes"),
    "deeplabv3plus-r101": _hurt("table II", "Cityscapes"),
    "gpt-117m": Published(
        CARAML, "NLP table, a pipeline over four GC200", "synthetic",
        {"batch_size": 1, "grad_accumulation": 64, "recompute": True, "optimizer": "adamw", "learning_rate": "1.5e-4"},
    ),
    "gpt-800m": _megatron("chart LLM_tflops, one GH200", 4, "fp16"),
    "gpt-13b": _megatron("llm_benchmark_nvidia_amd.yaml of the suite", 2, "fp16"),
    "gpt-175b": _megatron("llm_benchmark_nvidia_amd.yaml of the suite", 2, "bf16"),
    "bert-base-squad": Published(LAMBDA, "one H200", "SQuAD", {"precision": "fp16"}),
    "compression-autoencoder": Published(NASARI, "table 4, one A100, TensorFlow", "MNIST", {"batch_size": 10}),
    "fasterrcnn-r50-fpn": _hurt("table II", "COCO"),
    "dino-swin-l": _hurt("table II", "COCO"),
}  # fmt: skip


def published(workload: str, mode: str) -> Published:
    """The study behind preset=published, or which workloads have one."""
    if workload not in PUBLISHED:
        raise RequestError(
            f"preset=published is what a study ran, and Prony knows of none that ran {workload}; "
            f"there is one for {', '.join(PUBLISHED)}"
        )
    found = PUBLISHED[workload]
    if mode != "train":
        raise RequestError(
            f"preset=published is what a study ran, and {found.study} trained {workload}; there is no mode={mode} of it"
        )
    return found


# A workload: what it states, its defaults for a device, and the settings that it refuses.

# Whose images workers alone decode, and what the device would do.
BY_WORKERS = {"boxes": "cuts images to one size", "masks": "is for JPEGs, and street scenes are PNGs"}


def check_sides(workload: Workload, settings: Mapping[str, Value]) -> None:
    """Of images: what the model cuts them into must go into them."""
    patch, stride = workload.shape.get("patch", 1), workload.shape.get("stride", 1)
    for name, part, why in (
        ("image_size", patch, f"cuts an image into patches of {patch}"),
        ("crop_height", stride, f"answers for squares of {stride}"),
        ("crop_width", stride, f"answers for squares of {stride}"),
    ):
        size = settings.get(name)
        if isinstance(size, int) and size % part:
            raise RequestError(
                f"{name}={size} is not possible: {workload.name} {why} pixels; "
                f"{name}={max(1, round(size / part)) * part} would do"
            )


def check_shapes(workload: Workload, settings: Mapping[str, Value]) -> None:
    """Of a workload whose batches differ in shape, and of boxes, which are numbers of pixels."""
    mode, parts = settings.get("compile", "off"), workload.compiled_parts
    if workload.varies and settings.get("graphs"):
        _check_captured_part(workload, settings)
    if workload.varies and mode != "off" and not (parts and mode in ("default", "reduce-overhead")):
        offered = (
            f"compile=default compiles its {parts} for any shape, reduce-overhead captures them too" if parts else ""
        )
        raise RequestError(
            f"compile={mode} is not possible: no two batches of {workload.name} have the same shape; "
            + (offered or "leave it out")
        )
    if workload.reads == "boxes" and settings.get("precision") == "bf16-pure" and settings.get("mode") != "infer":
        raise RequestError(
            "precision=bf16-pure is not possible: a corner of a box at 600 pixels would be rounded by up to two; "
            "precision=bf16 keeps boxes in fp32"
        )


def _check_captured_part(workload: Workload, settings: Mapping[str, Value]) -> None:
    part = workload.captured_part
    if not part:
        raise RequestError(
            f"graphs=on is not possible: a graph repeats one shape, and no two batches of {workload.name} have the same"
        )
    if settings.get("mode") == "infer":
        raise RequestError(f"graphs=on captures the {part} of {workload.name} in training alone; leave it out")
    if settings.get("recompute"):
        raise RequestError(f"graphs=on captures the {part} of {workload.name}, which recompute=on runs twice; use one")
    if int(settings.get("grad_accumulation", 1)) > 1 or "global_batch" in settings:
        raise RequestError(
            f"graphs=on captures the {part} of {workload.name} with gradients that each backward pass overwrites, "
            "so they cannot be accumulated; use graphs=off"
        )


def check_eight_bits(workload: Workload, settings: Mapping[str, Value]) -> None:
    if settings.get("precision") != "fp8":
        return
    if not workload.has_fp8:
        raise RequestError(f"precision=fp8 is offered for the gpt models alone; {workload.name} has precision=bf16")
    if settings.get("mode") == "infer":
        raise RequestError("precision=fp8 is offered for mode=train alone; use precision=bf16 for inference")


def check_data(workload: Workload, settings: Mapping[str, Value]) -> None:
    """What the workload can read, and what it can learn from that."""
    data = settings.get("data", "device")
    if reads_data_set(settings) and not workload.reads:
        raise RequestError(f"{workload.name} has no way to read a data set; data is device or host")
    if data == "generated" and not workload.generated:
        raise RequestError(f"there is no data=generated for {workload.name}; give a data set that you have, data=PATH")
    if data == "generated" and workload.generated in FILES_ALONE and settings.get("data_format") == "shards":
        raise RequestError(
            f"shards hold images and their classes; what {workload.name} reads is written as data_format=files"
        )
    if workload.reads in BY_WORKERS and settings.get("decode", "cpu") != "cpu":
        raise RequestError(f"decode={settings['decode']} {BY_WORKERS[workload.reads]}; {workload.name} has decode=cpu")
    if workload.reads in BY_WORKERS and settings.get("cache") == "device":
        raise RequestError(f"cache=device is for small sets of pixels; {workload.name} takes cache=memory or off")
    if "tokenizer" in settings and (not reads_data_set(settings) or data == "generated"):
        raise RequestError(f"tokenizer is for texts that you have, and data={data} has none; add data=PATH")
    if "until" in settings:
        if settings.get("phase", "forward") != "forward" or settings.get("mode") == "infer":
            raise RequestError("until is a quality to train to; it has no meaning with mode=infer")
        parse_target(str(settings["until"]), workload.scores)


def check_operation(workload: Workload, settings: Mapping[str, Value]) -> None:
    """Of what a device, or devices together, can do: there is nothing to train and nothing to load."""
    if settings.get("mode") == "train":
        what = "the device itself" if workload.collective is None else "devices together"
        raise RequestError(f"{workload.name} measures what {what} can do, so it has mode=infer alone")
    if settings.get("data", "device") != "device":
        raise RequestError(
            f"{workload.name} works on operands of its own, so there is no data={settings['data']} to load"
        )
    if workload.collective is not None:
        workload.collective(settings)
    if settings.get("batch_size") == "auto":
        raise RequestError(f"{workload.name} gains nothing from memory; batch_size is how many operations a step has")
    kind = str(settings.get("device", "auto")).partition(":")[0]
    if workload.pinned and kind in ("cpu", "mps"):
        raise RequestError(f"{workload.name} copies to a device's own memory; device={kind} has none")


SIZE = Setting("size", "choice", "full, or tiny: a small model of the same kind for CPUs and tests", ("full", "tiny"))
WEIGHTS = Setting(
    "weights", "text", "checkpoint of this model: a state_dict, torch or safetensors",
    pattern=r"\S(.*\S)?", example="a file",
)  # fmt: skip
TINY_BATCH = 8
AUGMENTED = ("images", "boxes", "masks")  # what is to be reconstructed stays as it is
# What a model does with a sample of a data set, by what the sample must be.
TASKS = {
    "images": "image classification",
    "masks": "semantic segmentation",
    "boxes": "object detection",
    "tokens": "language modeling",
    "spans": "question answering",
    "grey": "image reconstruction",
}


@dataclass(frozen=True)
class Workload:
    """A model with its task."""

    name: str
    help: str
    module: str  # has build(workload, settings) -> Task; module:function where that has another name
    unit: str  # what is counted: images, tokens
    parameters: int | None  # None: only its library knows
    source: str
    batch: Mapping[str, int]  # default batch size by "mode/device kind", device kind cpu or accelerator
    memory_gib: Mapping[str, float]  # device memory that this default batch needs in the default precision, by mode
    optimizer: str = "sgd"
    memory_format: str = "contiguous"
    epoch_samples: int | None = None  # samples of the data set that stands behind an epoch
    settings: tuple[Setting, ...] = ()  # that only this workload has
    fixed: Mapping[str, Value] = field(default_factory=dict)  # defaults of those settings
    shape: Mapping[str, int] = field(default_factory=dict)  # the model's dimensions
    can_recompute: bool = False
    can_recompute_attention: bool = False  # alone: recompute=selective
    has_fp8: bool = False  # it trains with linear layers of eight bits
    library: str = ""  # besides torch
    flops: float | None = None  # of the forward pass of a sample at the defaults, a multiply-add being two
    flops_source: str = ""  # where that figure stands in the literature
    tiny: Mapping[str, Value] | None = None  # settings of size=tiny (image_size, sequence); None: it has no tiny size
    operation: bool = False  # a ceiling of the device: one operation on operands of its own, no gradients, no data set
    pinned: bool = False  # it copies from page-locked host memory, which only some devices have a use for
    fixed_on_cpu: Mapping[str, Value] = field(default_factory=dict)  # the defaults that are others on a CPU
    kernels: tuple[Kernel, ...] = ()  # that it can have in place of its library's
    few: int = 0  # samples of a step up to which it waits for a host that launches it kernel by kernel
    fixed_when_few: Mapping[str, Value] = field(default_factory=dict)  # and those of such a step on one CUDA device
    few_gib: float = 0.0  # the memory that they take for each sample
    asks_node: bool = False  # whether there is such a model can only be told where its library is
    least_batch: int = 1  # samples that a training step must have: a batch norm of one value has nothing to normalise
    reads: str = ""  # what a sample of a data set must be (data/source.py has the words); "" takes synthetic data alone
    generated: str = ""  # the kind of data that data=generated writes for it
    scores: tuple[str, ...] = ()  # how what it learned is judged on a test split, the first being what counts
    varies: bool = False  # no two batches have one shape: no step can be captured, or compiled as a whole
    split_module: str = ""  # its `stages_of` splits the model, whose shape has layers, heads and a vocabulary
    tiny_shape: Mapping[str, int] = field(default_factory=dict)  # what of that is other with size=tiny
    compiled_parts: str = ""  # of such a model: what compile=default compiles for any shape
    captured_part: str = ""  # of such a model: what graphs=on captures in training, a graph a shape
    # Of what devices do together, which a run of its own kind measures: refuses settings without meaning for it.
    collective: Callable[[Mapping[str, Value]], None] | None = None

    def parse(self, given: Mapping[str, object]) -> dict[str, Value]:
        """Typed settings of a request for this workload, refused when they cannot work together."""
        parsed = parse_settings(given, self.own_settings())
        if self.collective is not None and "parallel" in parsed:
            raise RequestError(f"parallel has no meaning for {self.name}, which is itself the exchange; leave it out")
        check_combination({"mode": self.modes[0], **parsed}, set(parsed))
        self._check_own(parsed)
        return parsed

    @property
    def task(self) -> str:
        """What the model is for, in words for a list; "" where only its plug-in knows."""
        if self.collective is not None:
            return "collective communication"
        return "ceiling of a device" if self.operation else TASKS.get(self.reads, "")

    @property
    def modes(self) -> tuple[str, ...]:
        """The modes that it has, its default first."""
        return ("infer",) if self.operation else ("train", "infer")

    def kernels_in(self, mode: str) -> tuple[Kernel, ...]:
        """The kernels that have a meaning in this mode."""
        return of_mode(self.kernels, mode)

    def own_settings(self) -> tuple[Setting, ...]:
        """The settings that not every workload has."""
        return self.settings if self.tiny is None else (*self.settings, SIZE)

    def known_parameters(self, settings: Mapping[str, Value]) -> int | None:
        """How many parameters the model of these settings is known to have."""
        classes = self.shape.get("classes")
        shaping = ("scales", *(["image_size"] if "patch" in self.shape else []))  # a ViT learns its positions
        others = [name for name in shaping if settings.get(name, self.fixed.get(name)) != self.fixed.get(name)]
        other = others or settings.get("classes", classes) != classes or settings.get("size") == "tiny"
        return None if other else self.parameters

    def least(self, mode: str) -> int:
        """The fewest samples that a step may have."""
        return self.least_batch if mode == "train" else 1

    def _check_own(self, settings: Mapping[str, Value]) -> None:
        if devices_of_model(settings) > 1:
            self._check_split(settings)
        if settings.get("preset") == "published":
            published(self.name, str(settings.get("mode", self.modes[0])))
        if self.operation:
            check_operation(self, settings)
        check_data(self, settings)
        check_shapes(self, settings)
        check_kernels(self.name, self.kernels, {"mode": self.modes[0], **settings})
        if "epochs" in settings and self.epoch_samples is None and not reads_data_set(settings):
            raise RequestError(f"{self.name} has no data set of a known size, so no epochs; use steps=N")
        if settings.get("recompute") and not self.can_recompute:
            asked = "selective" if settings["recompute"] == "selective" else "on"
            raise RequestError(
                f"recompute={asked} is not offered for {self.name}: "
                "language models and dino-swin-l can run their layers twice; leave it out"
            )
        if settings.get("recompute") == "selective" and not self.can_recompute_attention:
            raise RequestError(
                f"recompute=selective is not offered for {self.name}: the gpt workloads alone can run their attention "
                "twice; use recompute=on"
            )
        check_eight_bits(self, settings)
        check_sides(self, settings)
        self._check_batch(settings)
        length, most = settings.get("sequence"), self.shape.get("positions")
        if isinstance(length, int) and most is not None and length > most:
            raise RequestError(f"sequence={length} is not possible: {self.name} has {most} positions")
        has_images = self.unit == "images" or self.memory_format == "channels_last"
        if settings.get("memory_format") == "channels_last" and not has_images:
            raise RequestError(f"memory_format=channels_last is a layout of images; {self.name} has none")

    def _check_split(self, settings: Mapping[str, Value]) -> None:
        if not self.split_module:
            raise RequestError(
                f"tp and pp are offered for the gpt workloads alone: nobody said how {self.name} is split; "
                "parallel=ddp and parallel=fsdp take any"
            )
        tiny = self.tiny_shape if settings.get("size") == "tiny" else {}
        check_model(self.name, {**self.shape, **tiny}, settings)

    def _check_batch(self, settings: Mapping[str, Value]) -> None:
        batch = settings.get("batch_size")
        if isinstance(batch, int) and batch < self.least(str(settings.get("mode", self.modes[0]))):
            raise RequestError(
                f"batch_size={batch} is not possible: {self.name} normalises over a batch where an image is one value; "
                f"batch_size={self.least_batch} would do"
            )

    def effective(self, requested: Mapping[str, Value], machine: Machine) -> dict[str, Value]:
        """Every effective value: what was asked for, and the defaults of this machine for the rest."""
        values = self.defaults(requested, machine) | dict(requested)
        if "kernels" in requested:
            by_default = requested["kernels"] == DEFAULT
            names = self._default_kernels(values, requested, machine) if by_default else kernel_names(values["kernels"])
            values["kernels"] = join_kernels(names)
        values["device"] = machine.device if requested.get("device", "auto") == "auto" else requested["device"]
        out_of_place = TRAINING_ONLY if values["mode"] == "infer" else INFERENCE_ONLY
        values = {name: value for name, value in values.items() if name not in out_of_place or name in requested}
        if values["data"] == "device":
            values = {name: value for name, value in values.items() if name not in LOADER_ONLY}
        if not reads_data_set(values):
            values = {name: value for name, value in values.items() if name not in DATA_SET_ONLY}
        elif "until" in values:
            values.setdefault("epochs", DEFAULT_EPOCHS)
        if values.get("workers") == 0:
            values.pop("prefetch", None)
        if values["compile"] == "off":
            values.pop("compile_cache", None)
        check_combination(values, set(requested))
        fill_batches(values, requested)
        self._check_own(values)
        if self.collective is not None:
            values["parallel"] = "collective"  # its devices share no work: the exchange itself is the work
        return values

    def defaults(self, requested: Mapping[str, Value], machine: Machine) -> dict[str, Value]:
        """What an expert would pick on this machine (preset=fast), a beginner (plain), or what a study ran."""
        mode = str(requested.get("mode", self.modes[0]))
        with_graphs = machine.device == "cuda"
        values: dict[str, Value] = {
            "preset": "fast",
            "mode": mode,
            "data": "device",
            "batch_size": self._batch(mode, machine, requested.get("memory_cap")),
            "precision": "fp32" if machine.device in ("cpu", "mps") else "bf16",
            "compile": "default" if with_graphs else "off",
            "compile_cache": "warm",
            "graphs": with_graphs and requested.get("compile") != "reduce-overhead",
            "memory_format": self.memory_format,
            "optimizer": self.optimizer,
            "fused": self._fused(requested, machine),
            "grad_accumulation": 1,
            "recompute": False,
            "workers": max(1, min(8, machine.cores - 1)),
            "prefetch": 4,
            "pin_memory": machine.device in ("cuda", "xpu"),
            "cores": str(machine.cores),
            "seed": 0,
            "augment": self.reads in AUGMENTED,
        }
        values.update(parallel_defaults({"mode": mode, **requested}))
        values.update(self.fixed)
        if machine.device == "cpu":
            values.update(self.fixed_on_cpu)
        if requested.get("preset", "fast") != "fast":
            values |= {
                "precision": self.fixed.get("precision", "default"), "compile": "off", "graphs": False,
                "memory_format": "contiguous", "fused": False, "workers": 0, "pin_memory": False,
            }  # fmt: skip
        if requested.get("preset") == "published":
            study = published(self.name, mode)
            values |= {**study.settings, "study": study.named}
        if self.tiny is not None:
            values["size"] = "full"
            if requested.get("size") == "tiny":
                values |= {"batch_size": TINY_BATCH, **self.tiny}
        if machine.device == "cuda" and self._has_few(values | dict(requested), machine):
            values |= self.fixed_when_few
        if self.kernels_in(mode):
            values["kernels"] = join_kernels(self._default_kernels(values | dict(requested), requested, machine))
        return values

    def _default_kernels(
        self, settings: Mapping[str, Value], requested: Mapping[str, Value], machine: Machine
    ) -> tuple[str, ...]:
        """The kernels that pay on this machine (preset=fast), or those that a study ran."""
        mode = str(settings["mode"])
        if settings["preset"] == "published":
            ran = kernel_names(published(self.name, mode).settings.get("kernels", LIBRARY))
            can = {kernel.name for kernel in self.kernels if not kernel.devices or machine.device in kernel.devices}
            return tuple(name for name in ran if name in can)
        if settings["preset"] != "fast":
            return ()
        few = machine.device == "cuda" and self._has_few(settings, machine)
        return tuple(one.name for one in self.kernels if one.is_default(requested, mode, machine, few))

    def _has_few(self, settings: Mapping[str, Value], machine: Machine) -> bool:
        """Of batches that come round, so that each shape has come before, and of one device, whose gradients stay."""
        batch = settings["batch_size"]
        if not isinstance(batch, int) or batch > self.few or settings["devices"] != 1:
            return False
        goes_round = settings["data"] == "device" and settings["precision"] != "fp64" and settings["preset"] == "fast"
        whole = settings["grad_accumulation"] == 1 and "global_batch" not in settings
        captured = not self.captured_part or (settings["mode"] == "train" and not settings["recompute"])
        fits = batch * self.few_gib <= _room(machine, settings.get("memory_cap"))
        as_measured = settings.get("scales") == self.fixed.get("scales")  # others take other memory
        return goes_round and whole and captured and fits and as_measured

    def _fused(self, requested: Mapping[str, Value], machine: Machine) -> bool:
        if form_of(requested) == "fsdp" and requested.get("optimizer", self.optimizer) == "sgd":
            return False  # it takes no weights in parts
        if machine.device == "cpu" and requested.get("precision") == "bf16-pure":
            return requested.get("optimizer", self.optimizer) != "sgd"  # there torch's kernel does nothing
        return machine.device != "mps"

    def _batch(self, mode: str, machine: Machine, cap_gib: Value | None = None) -> int:
        kind = "cpu" if machine.device == "cpu" else "accelerator"
        batch = self.batch[f"{mode}/{kind}"]
        needed = self.memory_gib[mode]
        while batch > self.least(mode) and needed > _room(machine, cap_gib):
            batch, needed = batch // 2, needed / 2
        return batch


def _room(machine: Machine, cap_gib: Value | None) -> float:
    """How much of a device's memory a default may count on, in GiB."""
    if machine.device == "cpu":
        return math.inf
    there = math.inf if machine.memory_gib is None else machine.memory_gib
    return 0.9 * min(there, math.inf if cap_gib is None else float(cap_gib))
