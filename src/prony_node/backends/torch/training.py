"""Training: optimizer, learning rate, and whether the weights keep moving throughout the measured window."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from prony_node.backends.torch.task import Task
from prony_node.contract.settings import Value
from prony_node.contract.trial import learns_to_quality
from prony_node.measure.checks import StillTraining


def parameter_norms(model: nn.Module) -> Tensor:
    """One number a parameter, to see that each is finite and that training moved it; of all its parts together."""
    norms = [_wide(parameter.detach()).square().sum() for parameter in model.parameters()]
    return torch.stack([norm.full_tensor() if hasattr(norm, "full_tensor") else norm for norm in norms])


def _wide(tensor: Tensor) -> Tensor:
    """In fp64, so that one small change in a large tensor shows; MPS has none, its tensors are fetched."""
    return (tensor.cpu() if tensor.device.type == "mps" else tensor).double()


KINDS = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


def make_optimizer(
    task: Task, settings: dict[str, Value], model: nn.Module, device: torch.device
) -> torch.optim.Optimizer:
    captured = learns_to_quality(settings) and bool(settings["graphs"])
    options: dict[str, Any] = {"weight_decay": task.weight_decay}
    options["fused"] = bool(settings["fused"]) or None  # None, not False: torch's own default beside it
    if settings["optimizer"] == "sgd":
        options["momentum"] = 0.9
    elif settings["graphs"]:
        options["capturable"] = True
    groups = in_groups(model, task.rate_share)
    for group in groups:
        rate = task.learning_rate * group["share"]
        group["lr"] = torch.tensor(rate, device=device) if captured else rate  # a captured step reads it from there
    optimizer: torch.optim.Optimizer = KINDS[str(settings["optimizer"])](groups, **options)
    if settings["optimizer"] == "sgd" and settings["fused"]:
        # Torch makes these in the first step and leaves them unwritten when that step overflows, as the first
        # one in fp16 does; from zero the first update is the same.
        for parameter in model.parameters():
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    return optimizer


def in_groups(model: nn.Module, share: Callable[[str], float]) -> list[dict[str, Any]]:
    """Parameters that an optimizer can take at once: in parts over the same devices or plain, and of one rate."""
    groups: dict[Any, list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        groups.setdefault((getattr(parameter, "device_mesh", None), share(name)), []).append(parameter)
    return [{"params": parameters, "share": share} for (_, share), parameters in groups.items()]


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """This learning rate from the next step on, or a group's share of it."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate * group["share"])  # a captured step reads it from there
        else:
            group["lr"] = rate * group["share"]


WEIGHTS_PER_TENSOR = 4  # that are looked at within the window
MOST_PROBES = 256  # that are kept; of more, every second one is dropped
FEWEST_FURTHER_STEPS, MOST_FURTHER_STEPS = 4, 8  # each must train: one in two that does not would pass as half the work
STALLED_SHARE = 0.5  # of the weights that move after the window, which must move in each part of it
# Weights of 16 bits swallow most small updates, so that of those that moved in some steps few move in each.
STALLED_SHARE_16_BIT, FEWEST_16_BIT = 0.02, 100
LEAST_MOVE = 0.01  # of what such a weight moves in a step; momentum and weight decay alone soon move it less


class UpdateCount:
    """Optimizer steps that were made, and those that a gradient scaler skipped on the device."""

    def __init__(self) -> None:
        self.made = 0
        self._skipped: Tensor | None = None

    def follow(self, optimizer: torch.optim.Optimizer, device: torch.device, scaled: bool) -> None:
        """Count from here on. A captured step calls no hook: whoever replays it adds to `made`."""
        if scaled:
            self._skipped = torch.zeros((), device=device)
        optimizer.register_step_post_hook(self._after)

    def _after(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        self.made += 1
        overflowed = getattr(optimizer, "found_inf", None)  # fused: the kernel itself leaves the weights alone
        if overflowed is not None and self._skipped is not None:
            self._skipped.add_(overflowed)

    def skipped(self) -> int:
        """Made by the host, and then not done by the device. Waits for the device."""
        return 0 if self._skipped is None else int(self._skipped)


class LossWatch:
    """Whether any loss since `begin` was not finite: one small kernel per loss, on the device, read after the window.

    Such a loss times zero is not a number, and a sum that is not a number stays so. `begin` writes in place, since a
    captured step holds on to the very tensor.
    """

    def __init__(self) -> None:
        self._sum: Tensor | None = None

    def follow(self, device: torch.device) -> None:
        self._sum = torch.zeros((), device=device)

    def see(self, loss: Tensor) -> None:
        if self._sum is not None:
            own = loss.detach()
            if hasattr(own, "to_local"):  # of a model that is split
                own = own.to_local()
            self._sum.add_(own.reshape(()) if own.dim() else own, alpha=0)

    def begin(self) -> None:
        if self._sum is not None:
            self._sum.zero_()

    def all_finite(self) -> bool:
        """Waits for the device."""
        return self._sum is None or bool(torch.isfinite(self._sum))


class Probes:
    """A few weights of each parameter tensor, copied on the device each time it is asked to: one small kernel.

    Empty where no rank has the whole of a parameter.
    """

    def __init__(self, model: nn.Module) -> None:
        parameters = [parameter.detach() for parameter in model.parameters() if parameter.requires_grad]
        sharded = any(hasattr(parameter, "full_tensor") for parameter in parameters)
        self._views = [] if sharded else [_few(parameter) for parameter in parameters if _dense(parameter)]
        self.at: list[int] = []  # after how many steps of the window each was taken
        self._every = self._asked = 1
        if self._views:
            width = sum(view.numel() for view in self._views)
            self._kept = self._views[0].new_empty((MOST_PROBES, width))

    def now(self) -> Tensor | None:
        return torch.cat(self._views) if self._views else None

    def take(self, steps: int) -> None:
        """Called from inside the window, after so many steps of it."""
        self._asked -= 1
        if not self._views or self._asked or (self.at and steps == self.at[-1]):
            self._asked = max(1, self._asked)
            return
        if len(self.at) == MOST_PROBES:
            self._kept[: MOST_PROBES // 2] = self._kept[::2].clone()
            self.at = self.at[::2]
            self._every *= 2
        self._asked = self._every
        torch.cat(self._views, out=self._kept[len(self.at)])
        self.at.append(steps)

    def stalled(self, before: Tensor | None, after: Tensor | None, steps: int) -> tuple[int, int]:
        """Parts of the window in which most weights stood still that moved in `steps` steps after it; all parts."""
        parts = len(self.at) - 1
        if before is None or after is None or parts < 1:
            return 0, 0
        moving = before != after
        narrow = before.element_size() <= 2
        if int(moving.sum()) < (FEWEST_16_BIT if narrow else 1):
            return 0, 0
        kept = self._kept[: len(self.at)][:, moving]
        least = LEAST_MOVE / steps * (after - before)[moving].abs()
        moved = ~((kept[1:] - kept[:-1]).abs() <= least)  # what is not a number has moved: another check tells of it
        shares = moved.float().mean(dim=1)
        return int((shares < (STALLED_SHARE_16_BIT if narrow else STALLED_SHARE)).sum()), parts


def _dense(parameter: Tensor) -> bool:
    reach = sum((size - 1) * stride for size, stride in zip(parameter.shape, parameter.stride(), strict=True))
    return parameter.numel() > 0 and reach + 1 == parameter.numel()


def _few(parameter: Tensor) -> Tensor:
    """Weights from the middle of the tensor, as a view in the order of its memory."""
    count = min(WEIGHTS_PER_TENSOR, parameter.numel())
    return parameter.as_strided((count,), (1,), parameter.storage_offset() + (parameter.numel() - count) // 2)


class GradientsSeen:
    """Which parameters had a gradient other than zero in any step; nothing is seen of a captured step."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._parameters = list(model.parameters())
        self._seen: list[Tensor | None] = [None] * len(self._parameters)
        self.steps = 0
        self._in_step: list[Tensor] = []  # whether there was any, by step
        self._hook = optimizer.register_step_pre_hook(self._look)

    def _look(self, *_: object) -> None:
        self.steps += 1
        seen: Tensor | None = None
        for number, parameter in enumerate(self._parameters):
            if parameter.grad is not None:
                gradient = parameter.grad.detach()
                local = gradient.to_local() if hasattr(gradient, "to_local") else gradient
                there, before = (local != 0).any(), self._seen[number]
                self._seen[number] = there if before is None else before | there
                seen = there if seen is None else seen | there
        self._in_step.append(torch.tensor(False) if seen is None else seen)

    def found(self) -> list[bool]:
        return [one is not None and bool(one) for one in self._seen]

    def idle_steps(self) -> int:
        return sum(not bool(one) for one in self._in_step)

    def close(self) -> None:
        self._hook.remove()


def train_further(
    step: Callable[[], None],
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    begun: Tensor,
    probes: Probes,
    agree: Callable[[bool], bool] = lambda done: done,
) -> StillTraining:
    """Take more of the measured steps until each tensor that moved since the run began (`begun`) moved again.

    `agree` makes ranks that exchange gradients stop after the same step.
    """
    norms, first = parameter_norms(model), probes.now()
    wanted = norms != begun
    moved = torch.zeros_like(wanted)
    gradients = GradientsSeen(model, optimizer)
    sharded = any(hasattr(parameter, "full_tensor") for parameter in model.parameters())
    steps, still, done = 0, 0, False
    before = norms
    try:
        while steps < MOST_FURTHER_STEPS and not done:
            step()
            steps += 1
            after = parameter_norms(model)
            moved |= after != norms
            still += not bool((after != before).any())
            before = after
            visible = gradients.steps > 0 and not sharded
            idle = [want and not seen for want, seen in zip(wanted.tolist(), gradients.found(), strict=True)]
            enough = steps >= FEWEST_FURTHER_STEPS and bool(moved[wanted].all())
            done = agree(enough and not (visible and any(idle)))
    finally:
        gradients.close()
    stalled, parts = probes.stalled(first, probes.now(), steps)
    return StillTraining(
        steps=steps,
        tensors=int(wanted.sum()),
        changed=int((moved & wanted).sum()),
        idle=sum(idle) if visible else None,
        idle_steps=max(still, gradients.idle_steps() if visible else 0),
        stalled=stalled,
        parts=parts,
    )
