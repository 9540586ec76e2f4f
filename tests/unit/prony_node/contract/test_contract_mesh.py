"""How devices are arranged: who is where, what a split model gets by default, and what is refused with its reason."""

from __future__ import annotations

import pytest

from prony_node.contract import RequestError
from prony_node.contract.machine import Machine
from prony_node.contract.settings import arrangement, form_of, models, replicas
from prony_node.workloads import find_workload

CPU = Machine("cpu", None, 1)
REFUSED = {
    "gpt-tiny devices=4 dp=2 tp=4": "dp x pp x tp is 2 x 1 x 4 = 8, and there are 4 devices; devices=8 would",
    "gpt-tiny devices=3 tp=2": "dp x pp x tp is 1 x 1 x 2 = 2, and there are 3 devices; devices=2 would",
    "gpt-tiny devices=6 nodes=3 dp=2 tp=2": "2 x 1 x 2 = 4, and there are 6 devices; devices=4 nodes=1 would do",
    "gpt-tiny tp=2": "devices=2 would do",
    "gpt-tiny devices=3 tp=3": "tp=3 is not possible: it does not divide the 4 heads of gpt-tiny",
    "gpt-tiny devices=4 tp=4 size=tiny": "it does not divide the 2 heads of gpt-tiny",
    "gpt-tiny devices=3 pp=3": "its 3 stages do not divide the 4 layers of gpt-tiny",
    "gpt-tiny devices=4 pp=4 schedule=interleaved": "its 8 stages do not divide the 4 layers of gpt-tiny",
    "gpt-tiny devices=4 pp=4 grad_accumulation=3": "needs as many micro-batches at least; grad_accumulation=4 would do",
    "gpt-tiny devices=2 pp=2 schedule=interleaved grad_accumulation=5": "rounds of 2; grad_accumulation=4 would do",
    "gpt-tiny devices=2 schedule=1f1b": "schedule is the order of a pipeline's micro-batches; add pp=N",
    "gpt-tiny devices=2 tp=2 mode=infer": "tp=2 is offered for training alone",
    "gpt-tiny devices=2 tp=2 precision=fp16": "use bf16",
    "gpt-tiny devices=2 tp=2 precision=fp8": "precision=fp8 scales whole weights",
    "gpt-tiny devices=2 tp=2 parallel=fsdp": "parallel is about gradients that replicas exchange, and tp=2 leaves one",
    "gpt-tiny devices=2 tp=2 bucket_mb=1": "bucket_mb is about gradients that replicas exchange",
    "gpt-tiny devices=4 dp=2 tp=2 parallel=independent": "parallel=independent has copies that wait for nobody",
    "gpt-tiny devices=4 dp=2 pp=2 sync=off": "sync=off is not offered with pp",
    "gpt-tiny devices=2 tp=2 compile=max-autotune": "tp=2 takes compile=default, which compiles each layer",
    "gpt-tiny devices=2 pp=2 weights=some.pt": "each device draws its part of the weights",
    "gpt-tiny devices=2 pp=2 graphs=on": "an exchange between processes is not captured",
    "gpt-tiny devices=2 tp=2 data=generated until=loss<=3": "judged on a test split",
    "resnet50 devices=2 tp=2": "tp and pp are offered for the gpt workloads alone",
    "hf/llama devices=2 pp=2": "nobody said how hf/llama is split",
}  # fmt: skip


@pytest.mark.parametrize("request_text", REFUSED)
def test_what_cannot_be_split_so_is_refused_before_anything_starts(request_text: str) -> None:
    name, *words = request_text.split()
    given = dict(word.split("=", 1) for word in words)
    with pytest.raises(RequestError) as refused:
        find_workload(name).parse(given)
    assert REFUSED[request_text] in str(refused.value)


def test_devices_that_share_a_layer_are_neighbours_and_replicas_are_furthest_apart() -> None:
    shape = arrangement({"pp": 2, "tp": 2}, 8)
    assert (shape.dp, shape.pp, shape.tp) == (2, 2, 2)
    assert [shape.place(rank) for rank in range(8)] == [
        (0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 1, 1), (1, 0, 0), (1, 0, 1), (1, 1, 0), (1, 1, 1),
    ]  # fmt: skip


def test_only_replicas_multiply_samples() -> None:
    workload = find_workload("gpt-tiny")
    settings = workload.effective(workload.parse({"devices": 8, "pp": 2, "tp": 2, "batch_size": 3}), CPU)
    assert (settings["dp"], settings["grad_accumulation"], settings["schedule"]) == (2, 8, "1f1b")
    assert settings["global_batch"] == 3 * 8 * 2
    assert (models(settings), replicas(settings), form_of(settings)) == (2, 2, "ddp")
    alone = workload.effective(workload.parse({"devices": 4, "nodes": 2, "tp": 4, "global_batch": 6}), CPU)
    assert (alone["batch_size"], replicas(alone), form_of(alone)) == (6, 1, "split")
    assert "bucket_mb" not in alone
