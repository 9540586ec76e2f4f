"""A part recorded for each shape answers and learns as the function itself does; a recording here is run again."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from prony_node.backends.torch.step import Captured


class Replaying:
    """In the place of a device's graphs: what is recorded is run, and run again instead of replayed."""

    def __init__(self) -> None:
        self.recorded = 0

    def __call__(self, work: Callable[[], None]) -> Callable[[], None]:
        self.recorded += 1
        work()
        return work


class Part(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.idle = nn.Parameter(torch.randn(3, 3)), nn.Parameter(torch.randn(2))

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What depends on the weights, what does not, and what is no number of the kind that has gradients."""
        valid = torch.arange(len(x)) < lengths
        return (x @ self.weight).tanh(), x / 2, valid


def given(rows: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    return torch.randn(rows, 3, generator=torch.Generator().manual_seed(seed)), torch.tensor([rows - 1])


@pytest.fixture
def part() -> Part:
    torch.manual_seed(0)
    return Part()


def test_answers_and_gradients_are_those_of_the_function_shape_after_shape(part: Part) -> None:
    record = Replaying()
    captured = Captured(part, record)
    for rows, seed in ((4, 1), (2, 2), (4, 3), (2, 4), (4, 1)):
        found = captured(*given(rows, seed))
        expected = part(*given(rows, seed))
        for one, other in zip(found, expected, strict=True):
            assert torch.equal(one, other)
        part.zero_grad(set_to_none=True)
        found[0].square().sum().backward()
        (gradient,) = torch.autograd.grad(part(*given(rows, seed))[0].square().sum(), [part.weight])
        assert part.weight.grad is not None
        torch.testing.assert_close(part.weight.grad, gradient)
    assert record.recorded == 2 * 2  # forward and backward of two shapes


def test_what_weights_have_no_part_in_has_no_gradient(part: Part) -> None:
    moved, fixed, valid = Captured(part, Replaying())(*given(4))
    assert (moved.requires_grad, fixed.requires_grad, valid.requires_grad) == (True, False, False)
    moved.sum().backward()
    assert part.weight.grad is not None
    assert part.idle.grad is None


def test_gradients_are_handed_on_without_a_copy(part: Part) -> None:
    """As many copies as there are parameters would be launched, which a graph is there to spare."""
    captured = Captured(part, Replaying())
    captured(*given(4))[0].sum().backward()
    assert part.weight.grad is not None
    assert part.weight.grad.data_ptr() == captured.gradients[0].data_ptr()


class Between(nn.Module):
    """It hands gradients on to what comes before, and is given numbers and nothing as well."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3))

    def forward(self, x: Tensor, fixed: Tensor, mask: Tensor | None, times: int) -> tuple[Tensor]:
        y = x * self.weight * times + fixed
        return (y if mask is None else y * mask,)


def test_gradients_go_on_to_what_comes_before(part: Part) -> None:
    torch.manual_seed(1)
    between, record = Between(), Replaying()
    captured = Captured(between, record)
    parameters = [part.weight, between.weight]
    for rows, mask, times in (
        (4, None, 2),
        (4, torch.tensor([1.0, 0.0, 1.0]), 2),
        (4, None, 3),
        (2, None, 2),
        (4, None, 2),
    ):
        x, lengths = given(rows)
        found = []
        for middle in (captured, between):
            (answer,) = middle(part(x, lengths)[0], x, mask, times)
            found.append((answer, *torch.autograd.grad(answer.square().sum(), parameters)))
        for one, other in zip(*found, strict=True):
            torch.testing.assert_close(one, other)
    assert record.recorded == 2 * 4  # what is no tensor tells recordings apart, as shapes do


def test_what_is_given_is_not_written_to(part: Part) -> None:
    captured = Captured(part, Replaying())
    first, second = given(4, 1), given(4, 2)
    before = first[0].clone()
    captured(*first)
    captured(*second)
    assert torch.equal(first[0], before)


def test_a_recording_has_leaves_of_its_own(part: Part, monkeypatch: pytest.MonkeyPatch) -> None:
    """A parameter's own leaf belongs to the stream of the step, and so does one that ran before: a graph that waits for
    another stream breaks."""
    used: list[Tensor] = []
    forward = part.forward
    monkeypatch.setattr(part, "forward", lambda *given: (used.append(part.weight), forward(*given))[1])
    captured = Captured(part, Replaying())
    captured(*given(4))
    before, recorded = used[:2]
    assert part.weight is not before
    assert recorded is not before
    assert recorded is not part.weight
    assert before.data_ptr() == recorded.data_ptr() == part.weight.data_ptr()


def test_without_gradients_nothing_is_recorded(part: Part) -> None:
    record = Replaying()
    with torch.no_grad():
        Captured(part, record)(*given(4))
    assert record.recorded == 0
