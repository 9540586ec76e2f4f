"""From a task and its settings to a step: what one call does on the device, with what only CUDA has."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.compiler
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.func import functional_call

from prony_node.backends.torch.compiling import ConvolutionGradient, ask_ahead
from prony_node.backends.torch.task import Batch, GradientExchange, Task
from prony_node.backends.torch.training import LossWatch, UpdateCount, make_optimizer, set_rate
from prony_node.contract.settings import Value

# Which of torch's attention kernels a step asks first.


@contextlib.contextmanager
def asked_in(order: tuple[str, ...], *, only: bool = False) -> Iterator[None]:
    """Kernels are asked in this order in here, and torch's plain form last, unless `only` these may answer."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    named = {
        "cudnn": SDPBackend.CUDNN_ATTENTION,
        "flash": SDPBackend.FLASH_ATTENTION,
        "efficient": SDPBackend.EFFICIENT_ATTENTION,
        "math": SDPBackend.MATH,
    }
    names = order if only else dict.fromkeys((*order, "math"))
    with sdpa_kernel([named[name] for name in names], set_priority=True), _own_cache(" ".join(names)):
        yield


def _own_cache(tag: str) -> contextlib.AbstractContextManager[Any]:
    """Compiled code has its kernel in it, and torch's cache tells graphs apart by what they ask for alone."""
    config: Any = getattr(torch.compiler, "config", None)
    if not hasattr(config, "cache_key_tag"):  # an older torch
        return contextlib.nullcontext()
    patched: contextlib.AbstractContextManager[Any] = config.patch(cache_key_tag=f"attention {tag}")
    return patched


# What only CUDA (and ROCm under its name) has: matrix modes, and graphs of a step or of a part of a model.


WAITED = "called a synchronizing CUDA operation"  # as torch says it
WARM_STEPS = 3  # before a capture: lazy initialisation and autotuning must be over


def set_matrix_modes(precision: str, *, autotune: bool) -> None:
    """fp32 means fp32; default is torch's own: tf32 in cuDNN's convolutions, fp32 in other matrix products."""
    torch.backends.cuda.matmul.allow_tf32 = precision not in ("default", "fp32", "fp64")
    torch.backends.cudnn.allow_tf32 = precision not in ("fp32", "fp64")
    torch.backends.cudnn.benchmark = autotune


def is_depthwise(model: nn.Module) -> bool:
    """Whether a tenth or more of its convolutions are depthwise.

    Trying out their kernels takes most of such a model's start and gains little. Seen on an H200 for EfficientNet-B0
    alone: a start of 51 s and 8,167 images/s with it (a record), 17 s and 7,952 images/s without (a trial of seconds).
    """
    convolutions = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    depthwise = sum(1 < module.groups == module.in_channels for module in convolutions)
    return depthwise > 0 and depthwise >= 0.1 * len(convolutions)


@contextlib.contextmanager
def exact_fp32() -> Iterator[None]:
    """No tf32 in here, whatever the step's own precision is: a reference must not share its rounding."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = False
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before


@contextlib.contextmanager
def untried() -> Iterator[None]:
    """No trying out of convolution kernels in here: for a batch that comes once it takes longer than it saves."""
    cudnn = torch.backends.cudnn
    before = cudnn.benchmark
    cudnn.benchmark = False
    try:
        yield
    finally:
        cudnn.benchmark = before


def capture(step: Callable[[], None], side_steps: int = WARM_STEPS) -> Callable[[], None]:
    """The whole step as one graph; answers its replay."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(side_steps):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    replay: Callable[[], None] = graph.replay
    return replay


def recorder() -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Makes graphs that share their memory, so that only one of them may be at work; each is answered by its replay."""
    pool = torch.cuda.graph_pool_handle()

    def record(work: Callable[[], None]) -> Callable[[], None]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            work()
        replay: Callable[[], None] = graph.replay
        return replay

    return record


def waits(work: Callable[[], None]) -> int:
    """How often the host waits for the device meanwhile, as far as torch sees it: not a wait for an event."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            work()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum(WAITED in str(one.message) for one in caught)


Work = Callable[[], None]
Record = Callable[[Work], Work]  # does it, and answers what does the same again, from and to the same places


class Captured:
    """Called as the part itself, which answers tensors."""

    def __init__(self, part: nn.Module, record: Record | None = None) -> None:
        self.part = part
        self.parameters = {name: one for name, one in part.named_parameters() if one.requires_grad}
        self.gradients = [torch.zeros_like(parameter) for parameter in self.parameters.values()]
        self.record = record or recorder()
        self.passes: dict[tuple[Any, ...], Passes] = {}  # by what is given, of tensors the shapes

    def __call__(self, *given: Any) -> tuple[Tensor, ...]:
        if not torch.is_grad_enabled():
            answered: tuple[Tensor, ...] = self.part(*given)
            return answered
        key = tuple((one.shape, one.dtype, one.requires_grad) if isinstance(one, Tensor) else one for one in given)
        if key not in self.passes:
            self.passes[key] = Passes(self, given)
        found: tuple[Tensor, ...] = Replayed.apply(self.passes[key], *given, *self.parameters.values())
        return found


class Passes:
    """Forward and backward of one shape, recorded when it first comes."""

    def __init__(self, captured: Captured, given: tuple[Any, ...]) -> None:
        self.captured = captured
        self.given = [one.detach().clone() if isinstance(one, Tensor) else one for one in given]
        self.learned = [number for number, one in enumerate(given) if isinstance(one, Tensor) and one.requires_grad]
        self.leaves: dict[str, Tensor] = {}
        self.found: tuple[Tensor, ...] = ()
        self.wanted: list[Tensor] = []  # the gradients of what was found, where that has any
        self.reached: list[bool] = []  # which parameters get gradients
        self.gradients: dict[int, Tensor | None] = {}  # of what is given, where it wants any
        self.differs: list[bool] = []  # of what was found: whether it depends on parameters
        # Kernels are chosen and loaded when they are first run, which no graph may hold. On the stream of the step: the
        # memory that another stream is given, as much as the step itself needs, would stay with that stream.
        self._begin()
        self._forward()
        self._ask()
        self._backward()
        self._begin()
        self.forward = captured.record(self._forward)
        self._ask()
        self.backward = captured.record(self._backward)
        self._end()

    def _begin(self) -> None:
        """Other leaves where the parameters lie. Autograd remembers on which stream a leaf was first used: the step's
        would be waited for inside a graph, which breaks it."""
        self.found, self.wanted, self.gradients = (), [], {}
        self.leaves = {name: one.detach().requires_grad_() for name, one in self.captured.parameters.items()}
        for number in self.learned:
            self.given[number] = self.given[number].detach().requires_grad_()

    def _end(self) -> None:
        """What autograd knew of the parts between leaves and answers is not needed again."""
        self.differs = [tensor.requires_grad for tensor in self.found]
        self.found = tuple(tensor.detach() for tensor in self.found)

    def _ask(self) -> None:
        self.wanted = [torch.zeros_like(tensor) for tensor in self.found if tensor.requires_grad]

    def _forward(self) -> None:
        with torch.enable_grad():
            self.found = functional_call(self.captured.part, self.leaves, tuple(self.given))

    def _backward(self) -> None:
        found = [tensor for tensor in self.found if tensor.requires_grad]
        leaves = [*self.leaves.values(), *(self.given[number] for number in self.learned)]
        gradients = torch.autograd.grad(found, leaves, self.wanted, allow_unused=True)
        of_parameters, of_given = gradients[: len(self.leaves)], gradients[len(self.leaves) :]
        self.reached = [gradient is not None for gradient in of_parameters]
        self.gradients = dict(zip(self.learned, of_given, strict=True))
        pairs = [(own, new) for own, new in zip(self.captured.gradients, of_parameters, strict=True) if new is not None]
        torch._foreach_copy_([own for own, _ in pairs], [new for _, new in pairs])


class Replayed(torch.autograd.Function):
    """One forward and one backward pass of a shape, as autograd sees them."""

    @staticmethod
    def forward(ctx: Any, passes: Passes, *inputs: Any) -> tuple[Tensor, ...]:
        for own, new in zip(passes.given, inputs, strict=False):  # the parameters behind are where they were
            if isinstance(own, Tensor):
                own.copy_(new)
        passes.forward()
        found = tuple(tensor.detach() for tensor in passes.found)
        fixed = [tensor for tensor, differs in zip(found, passes.differs, strict=True) if not differs]
        ctx.mark_non_differentiable(*fixed)
        ctx.passes = passes
        return found

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        passes: Passes = ctx.passes
        given = [gradient for gradient, differs in zip(gradients, passes.differs, strict=True) if differs]
        for own, new in zip(passes.wanted, given, strict=True):
            own.copy_(new)
        passes.backward()
        # As a view each, which autograd takes for its own instead of copying it.
        of_given = [passes.gradients.get(number) for number in range(len(passes.given))]
        reached = zip(passes.captured.gradients, passes.reached, strict=True)
        return (
            None,
            *(None if one is None else one.detach() for one in of_given),
            *(own.detach() if there else None for own, there in reached),
        )


# From a task and its settings to a step: what one call does on the device.


AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.bfloat16}  # fp8: what has no eight bits
PURE = {"bf16-pure": torch.bfloat16, "fp64": torch.float64}
# An inference has no weights to update, so a low precision is the precision of its weights.
INFERENCE = {"bf16": torch.bfloat16, "bf16-pure": torch.bfloat16, "fp16": torch.float16, "fp64": torch.float64}
FIRST_STEPS = WARM_STEPS + 1  # taken by `prepare`, with and without a graph


class LossOf(nn.Module):
    """The loss of a batch as a module that holds the model, so that all of it lies inside what is tied to others."""

    def __init__(self, model: nn.Module, loss: Callable[..., Tensor]) -> None:
        super().__init__()
        self.model = model
        self._loss = loss

    def forward(self, *batch: Tensor) -> Tensor:
        return self._loss(*batch)


class Step:
    """One training or inference step. Call `prepare` once, then the object with each batch.

    `tied` is how it exchanges gradients with other ranks, where there are some.
    """

    first_steps = FIRST_STEPS

    def __init__(
        self, task: Task, settings: dict[str, Value], device: torch.device, tied: GradientExchange | None = None
    ) -> None:
        self.task, self.settings, self.device = task, settings, device
        self.tied = tied if settings["mode"] == "train" else None
        self.training = settings["mode"] == "train"
        self.precision = str(settings["precision"])
        self.output: Tensor | None = None  # the last loss or answer, on the device
        self.attention = task.attention_order if device.type == "cuda" else ()
        self.gradients: list[ConvolutionGradient] = []  # of the model's convolutions, with the batch of this step
        self.updates = UpdateCount()
        self.losses = LossWatch()
        self._inputs: Batch = ()
        self._replay: Callable[[], None] | None = None
        torch.manual_seed(int(settings["seed"]))
        with torch.device("meta") if self.tied is not None and self.tied.split else device:
            self.model = task.model()
        if device.type == "cuda":
            # Where shapes differ from batch to batch, trying out kernels for each would never end.
            autotune = settings["preset"] == "fast" and not task.varies and not is_depthwise(self.model)
            set_matrix_modes(self.precision, autotune=autotune)
        if settings.get("recompute") and task.recompute:
            task.recompute(self.model)
        if self.tied is not None:
            self.tied.precision = self.autocast
            self.model = self.tied.prepare_model(self.model)

    @property
    def input_dtype(self) -> torch.dtype:
        kinds = PURE if self.training else INFERENCE
        return kinds.get(self.precision, torch.float32)

    @property
    def compute_dtype(self) -> torch.dtype:
        """In which matrix products and attention are computed."""
        return (AUTOCAST.get(self.precision) if self.training else None) or self.input_dtype

    def place(self, batch: Batch) -> Batch:
        """A batch as this step takes it: device, precision, layout. Nothing is copied that fits already."""
        placed = []
        for at, tensor in enumerate(batch):
            if at in self.task.on_host:
                tensor = tensor.cpu()
            elif tensor.is_floating_point():
                layout = self.layout() if tensor.dim() == 4 else torch.preserve_format
                tensor = tensor.to(self.device, self.input_dtype, non_blocking=True, memory_format=layout)
            else:
                tensor = tensor.to(self.device, non_blocking=True)
            placed.append(tensor)
        return tuple(placed)

    def layout(self) -> torch.memory_format:
        return torch.channels_last if self.settings["memory_format"] == "channels_last" else torch.contiguous_format

    def finish_model(self) -> None:
        """Bring the model into its final shape, precision and layout."""
        if not self.training:
            self.model.eval().requires_grad_(False)
            if self.settings["preset"] == "fast":
                self.model = self.task.for_inference(self.model)
        if self.task.own_parts is not None:
            self.task.own_parts(self.model)
        self.model.to(self.input_dtype)
        in_parts = self.tied is not None and self.tied.sharded  # those must be contiguous; images are not affected
        if self.layout() is torch.channels_last and not in_parts:
            self.model.to(memory_format=torch.channels_last)
        self._whole_loss: Callable[..., Tensor] = self._loss
        if self.tied is not None:
            self._whole_loss = self.tied.wrap(LossOf(self.model, self._loss))

    def prepare(self, batch: Batch) -> None:
        """The first steps: optimizer state, compilation, autotuning, capture. They are steps like any other."""
        self._inputs = batch
        work = self._train if self.training else self._infer
        if self.training:
            self.optimizer = make_optimizer(self.task, self.settings, self.model, self.device)
            # A scaler that is not enabled passes losses and steps through unchanged.
            self.scaler = torch.amp.GradScaler(self.device.type, enabled=self.precision == "fp16")
            self.updates.follow(self.optimizer, self.device, scaled=self.precision == "fp16")
            self.losses.follow(self.device)
        self._forward = self._compiled(self._whole_loss if self.training else self._answer)
        self._work = work
        if self._may_ask_ahead():
            ask_ahead(self.gradients, self.device, self.compute_dtype, self.layout())
        if self.settings["graphs"] and self.task.capture_part is not None:
            self.task.capture_part(self.model, Captured)
        if self.settings["graphs"] and not self.task.varies:
            self._inputs = tuple(tensor.clone() for tensor in batch)
            self._replay = capture(work)
            self._replay()
        else:
            for _ in range(FIRST_STEPS - 1):
                work()
            with self.tied.counting() if self.tied is not None else contextlib.nullcontext():
                work()

    def _may_ask_ahead(self) -> bool:
        """Where the compiler takes its time, and cuDNN tries no kernels out: those are timed on a quiet device."""
        cudnn = self.device.type == "cuda" and torch.version.hip is None and not torch.backends.cudnn.benchmark
        return bool(self.gradients) and cudnn and self.settings["compile"] != "off"

    def __call__(self, batch: Batch) -> None:
        if self._replay is not None:
            for target, source in zip(self._inputs, batch, strict=True):
                target.copy_(source, non_blocking=True)
            self._replay()
            self.updates.made += 1  # in inference too, where nobody asks for it
        else:
            self._inputs = batch
            self._work()

    def keep_start(self) -> None:
        """Remember the weights before the first step, on the host: `restart` brings them back."""
        self._start = {name: tensor.detach().to("cpu", copy=True) for name, tensor in self.model.state_dict().items()}

    def restart(self) -> None:
        """As before the first step, in place, since a graph holds on to the very tensors."""
        with torch.no_grad():
            for name, tensor in self.model.state_dict().items():
                tensor.copy_(self._start[name])
            for state in self.optimizer.state.values():
                for value in state.values():
                    if isinstance(value, Tensor):
                        value.zero_()

    def set_rate(self, factor: float) -> None:
        """This share of the task's learning rate from the next step on."""
        set_rate(self.optimizer, self.task.learning_rate * factor)

    def kernels(self) -> AbstractContextManager[Any]:
        """Which attention kernels are preferred; entered once, around everything that the step does."""
        inside = contextlib.ExitStack()
        if self.attention:
            inside.enter_context(asked_in(self.attention))
        if self.tied is not None:
            inside.enter_context(self.tied.around())
        return inside

    def _compiled(self, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        mode = str(self.settings["compile"])
        if mode == "off" or (self.tied is not None and self.tied.split):  # a model that is split compiles its layers
            return function
        if self.task.varies:
            self._compile_parts(mode)
            return function
        if mode == "max-autotune" and self.settings["graphs"]:
            mode = "max-autotune-no-cudagraphs"  # the whole step is captured by us
        compiled: Callable[..., Tensor] = torch.compile(function, mode=mode, dynamic=False)
        return compiled

    def _compile_parts(self, mode: str) -> None:
        """In place, for any shape: what lies between such parts asks the host, and stays as it is."""
        for part in self.task.compiled_parts(self.model) if self.task.compiled_parts else ():
            part.compile(mode=mode, dynamic=True)

    def autocast(self) -> AbstractContextManager[Any]:
        dtype = AUTOCAST.get(self.precision) if self.training else None
        # A cache of cast weights would outlive the graph that filled it.
        return torch.autocast(self.device.type, dtype=dtype or torch.bfloat16, enabled=dtype is not None,
                              cache_enabled=False)  # fmt: skip

    def _loss(self, *batch: Tensor) -> Tensor:
        with self.autocast():
            return self.task.loss(self.model, batch)

    def _answer(self, *batch: Tensor) -> Tensor:
        return self.task.predict(self.model, batch)

    def _infer(self) -> None:
        if self.settings["compile"] in ("reduce-overhead", "max-autotune"):
            torch.compiler.cudagraph_mark_step_begin()
        with torch.no_grad():
            self.output = self._forward(*self._inputs)

    def _train(self) -> None:
        pieces = int(self.settings["grad_accumulation"])
        if self.settings["compile"] in ("reduce-overhead", "max-autotune"):
            torch.compiler.cudagraph_mark_step_begin()
        loss = self._take_pieces(pieces)
        if self.task.clip is not None:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), self.task.clip)  # on the device: nothing is waited for
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        self.output = None if loss is None else loss.detach()

    def _take_pieces(self, pieces: int) -> Tensor | None:
        """Forward and backward of every micro-batch; a loss, where this rank has one."""
        if self.tied is not None and self.tied.all_pieces is not None:
            loss = self.tied.all_pieces(self._inputs, pieces)
            if loss is not None:
                self.losses.see(loss)
            return loss
        loss = None
        for number, piece in enumerate(zip(*(tensor.chunk(pieces) for tensor in self._inputs), strict=True)):
            if self.tied is not None:
                self.tied.before_piece(last=number == pieces - 1)
            loss = self._forward(*piece)
            self.losses.see(loss)
            self.scaler.scale(loss / pieces if pieces > 1 else loss).backward()
        return loss

    def last_loss(self) -> Tensor:
        """Of the last step; where another rank has it, that one tells it, so that all must ask."""
        if self.tied is not None:
            return self.tied.loss_of_replica(self.output)
        assert self.output is not None
        return self.output

    def scores(self, batch: Batch) -> dict[str, Tensor]:
        """How well each sample of a test batch is answered, as the model stands; on the device."""
        assert self.task.scores is not None
        self.model.eval()
        try:
            with torch.no_grad(), self.autocast(), self._uncompiled():
                return self.task.scores(self.model, batch)
        finally:
            self.model.train()

    def held_out_loss(self, batch: Batch) -> float:
        """The loss on data that no step sees; with synchronisation, so never inside the window."""
        with torch.no_grad(), self._uncompiled(), untried():
            loss = self._whole_loss if self.tied is not None and self.tied.sharded else self._loss
            value = float(loss(*batch))
        if self.tied is not None:
            self.tied.rest()
        return value

    def _uncompiled(self) -> AbstractContextManager[Any]:
        """Parts that were compiled in place would be compiled anew for another batch and without gradients."""
        in_place = self.task.varies or (self.tied is not None and self.tied.split)
        return torch.compiler.set_stance("force_eager") if in_place else contextlib.nullcontext()
