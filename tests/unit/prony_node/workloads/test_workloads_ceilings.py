"""The device's ceilings count exactly what they do, do it every time, and are measured like any workload."""

from __future__ import annotations

import pytest
import torch

from prony_node.backends.torch.compiling import count_flops
from prony_node.backends.torch.model import reference_answer
from prony_node.backends.torch.step import Step
from prony_node.backends.torch.task import Task
from prony_node.contract import RequestError
from prony_node.contract.machine import Machine
from prony_node.contract.settings import Value
from prony_node.measure.checks import OUTPUT_BOUND
from prony_node.run.judge import utilisation_metrics
from prony_node.workloads import WORKLOADS, build_task
from prony_node.workloads.ceilings import HostCopy, Triad
from prony_node.workloads.ceilings_config import CEILINGS
from prony_node.workloads.config import Workload

CPU = torch.device("cpu")
COMPUTING = ("gemm", "conv", "attention")
EVERY = pytest.mark.parametrize("workload", CEILINGS, ids=lambda workload: workload.name)


def tiny(name: str, **more: Value) -> tuple[dict[str, Value], Task]:
    """Effective settings and task of the tiny size; as on a device where there must be one."""
    workload = WORKLOADS[name]
    machine = Machine("cuda", 80.0, 2) if workload.pinned else Machine("cpu", None, 2)
    settings = workload.effective({"size": "tiny", **more}, machine)
    settings |= {"device": "cpu", "graphs": False, "compile": "off"}
    return settings, build_task(workload, settings)


def test_the_ceilings_are_workloads() -> None:
    assert {workload.name for workload in CEILINGS} == {*COMPUTING, "memory-bandwidth", "host-to-device"}
    assert all(WORKLOADS[workload.name] is workload for workload in CEILINGS)


@pytest.mark.parametrize("size", ["full", "tiny"])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("name", COMPUTING)
def test_units_are_the_counted_flops_so_that_throughput_is_flops(name: str, device: str, size: str) -> None:
    """Else the share of the vendor's peak and the rate of the record would be two figures."""
    workload = WORKLOADS[name]
    settings = workload.effective({"size": size}, Machine(device, None, 2))
    task = build_task(workload, settings)
    assert (task.unit, task.units_per_sample) == ("FLOP", count_flops(task, training=False, recompute=False).per_sample)
    if (device, size) == ("cuda", "full"):
        assert workload.flops == task.units_per_sample
        assert 1e12 < task.units_per_sample < 2e12, "no longer what ceilings_config.py says of an H200"


@pytest.mark.parametrize(("precision", "width"), [("fp32", 4), ("tf32", 4), ("bf16", 2), ("fp16", 2)])
def test_bytes_are_those_of_the_buffers_in_every_precision(precision: str, width: int) -> None:
    workload = WORKLOADS["memory-bandwidth"]
    settings = workload.effective({"precision": precision, "size": "tiny"}, Machine("cuda", 80.0, 2))
    task = build_task(workload, settings)
    model = task.model()
    assert isinstance(model, Triad)
    assert task.units_per_sample == sum(buffer.numel() * width for buffer in model.buffers()) == 3 * 2**20
    assert count_flops(task, training=False, recompute=False).per_sample == 0
    copy = build_task(WORKLOADS["host-to-device"], settings)
    assert copy.units_per_sample == copy.model().target.nbytes == 2**20
    assert count_flops(copy, training=False, recompute=False).per_sample == 0


@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@EVERY
def test_a_step_answers_what_fp32_does(workload: Workload, precision: str, batch_size: int) -> None:
    settings, task = tiny(workload.name, precision=precision, batch_size=batch_size)
    step = Step(task, settings, CPU)
    held = task.sample(torch.Generator().manual_seed(2), 2)
    reference = reference_answer(task, step.model, held)
    step.finish_model()
    rows = torch.arange(batch_size) % len(held[0])
    batch = step.place(tuple(tensor[rows] for tensor in held))
    step.prepare(batch)
    step(batch)
    assert step.output is not None
    assert len(step.output) == batch_size
    answer = step.output[: len(reference)].float()
    expected = reference[: len(answer)]
    assert torch.isfinite(answer).all()
    assert float((answer - expected).norm() / expected.norm()) < OUTPUT_BOUND[precision]


@pytest.mark.parametrize("name", [*COMPUTING, "memory-bandwidth"])
def test_each_sample_has_an_answer_of_its_own(name: str) -> None:
    """Else an answer left over from the step before would pass for this one's."""
    settings, task = tiny(name)
    step = Step(task, settings, CPU)
    step.finish_model()
    answers = task.predict(step.model, step.place(task.sample(torch.Generator().manual_seed(0), 2)))
    assert not torch.equal(answers[0], answers[1])


def test_a_copy_that_does_not_happen_shows() -> None:
    _, task = tiny("host-to-device")
    model = task.model()
    assert isinstance(model, HostCopy)
    batch = task.sample(torch.Generator().manual_seed(0), 1)
    assert torch.equal(task.predict(model, batch)[0], model.host[:: model.step])
    model.host = model.target  # nothing arrives from the host any more
    stale = task.predict(model, batch)[0]
    assert float(stale.float().norm()) == 0


@EVERY
def test_a_ceiling_refuses_what_has_no_meaning_for_it(workload: Workload) -> None:
    for words, sentence in (
        ({"mode": "train"}, "mode=infer alone"),
        ({"data": "host"}, "no data=host"),
        ({"batch_size": "auto"}, "how many operations a step has"),
        ({"optimizer": "sgd"}, "optimizer has no meaning with mode=infer"),
    ):
        with pytest.raises(RequestError, match=sentence):
            workload.parse(words)
    assert workload.effective({}, Machine("cuda", 141.0, 8))["mode"] == "infer"
    assert workload.effective({}, Machine("cuda", 141.0, 8))["compile"] == "off"


def test_a_cpu_has_no_memory_of_a_device_to_copy_to() -> None:
    workload = WORKLOADS["host-to-device"]
    with pytest.raises(RequestError, match="device=cpu has none"):
        workload.parse({"device": "cpu"})
    for device in ("cpu", "mps"):
        with pytest.raises(RequestError, match=f"device={device} has none"):
            workload.effective(workload.parse({}), Machine(device, None, 2))


def test_images_of_a_convolution_can_be_laid_out_by_channels_and_those_of_a_product_cannot() -> None:
    assert WORKLOADS["conv"].effective({}, Machine("cuda", 80.0, 2))["memory_format"] == "channels_last"
    settings, task = tiny("conv")
    step = Step(task, settings, CPU)
    step.finish_model()
    assert step.model.images.is_contiguous(memory_format=torch.channels_last)
    assert step.model.weight.is_contiguous(memory_format=torch.channels_last)
    with pytest.raises(RequestError, match="gemm has none"):
        WORKLOADS["gemm"].parse({"memory_format": "channels_last"})


def test_moving_data_has_no_utilisation_of_flops() -> None:
    settings, task = tiny("memory-bandwidth")
    flops = count_flops(task, training=False, recompute=False)
    metrics = utilisation_metrics(flops, 0.0, (), "cpu", settings)
    assert metrics["mfu"].value is None
    assert "no matrix product" in str(metrics["mfu"].reason)
