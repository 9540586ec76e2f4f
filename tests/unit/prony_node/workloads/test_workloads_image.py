"""Image classifiers: their FLOPs are the literature's, their tiny sizes train and infer, libraries have theirs."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from small_steps import CPU, step_of
from torch import nn

from prony_node.backends.torch import memory
from prony_node.backends.torch.compiling import count_flops
from prony_node.contract import RequestError
from prony_node.contract.machine import Machine
from prony_node.contract.settings import Value
from prony_node.run.questions import check_name
from prony_node.workloads import build_task, find_workload
from prony_node.workloads.config import Workload
from prony_node.workloads.image_config import IMAGE_WORKLOADS
from prony_node.workloads.image_libraries import classification_loss, fold_if_same

CLASSIFIERS = pytest.mark.parametrize("workload", IMAGE_WORKLOADS, ids=lambda workload: workload.name)
STEPS = 40  # enough for the slowest to begin to learn; most have after the first ten


@CLASSIFIERS
def test_the_flops_are_the_literature_s(workload: Workload) -> None:
    task = build_task(workload, dict(workload.fixed))
    forward = count_flops(task, training=False, recompute=False).per_sample
    assert workload.flops is not None
    assert forward == pytest.approx(workload.flops, rel=0.03)
    assert workload.flops_source
    # Torch's own count of a depthwise convolution's gradient would make this forty for the efficient ones.
    assert 2.9 < count_flops(task, training=True, recompute=False).per_sample / forward < 3.0


def test_efficientnet_b4_is_the_documented_one_at_its_own_resolution() -> None:
    task = build_task(find_workload("efficientnet-b4"), {"image_size": 380})
    assert count_flops(task, training=False, recompute=False).per_sample == pytest.approx(2 * 4.394e9, rel=0.001)


@CLASSIFIERS
def test_a_tiny_one_learns_what_it_did_not_see(workload: Workload) -> None:
    step = step_of(workload.name, size="tiny")
    held_out = step.place(step.task.sample(torch.Generator().manual_seed(7), 32))
    before = step.held_out_loss(held_out)
    generator = torch.Generator().manual_seed(8)
    batches = [step.place(step.task.sample(generator, 8)) for _ in range(STEPS)]
    step.prepare(batches[0])
    after = before
    for number, batch in enumerate(batches, start=1):
        step(batch)
        if number % 10 == 0 and (after := step.held_out_loss(held_out)) < 0.95 * before:
            break
    assert after < 0.95 * before
    assert sum(parameter.numel() for parameter in step.model.parameters()) < 5e6


@CLASSIFIERS
def test_a_tiny_one_answers_as_its_reference_does(workload: Workload) -> None:
    settings: dict[str, Value] = {"size": "tiny", "mode": "infer"}
    fast, plain = step_of(workload.name, **settings), step_of(workload.name, preset="plain", **settings)
    batch = plain.place(plain.task.sample(torch.Generator().manual_seed(0), 4))
    plain.prepare(batch)
    fast.prepare(fast.place(batch))
    assert fast.output is not None
    assert plain.output is not None
    assert fast.output.shape == (4, 10)
    assert plain.output.any()  # a model that answers zero would agree with any that does
    torch.testing.assert_close(fast.output, plain.output, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "given", "parameters"),
    [
        ("resnet50", {}, 25_557_032),
        ("resnet152", {}, 60_192_808),
        ("vit-l-32", {}, 306_535_400),
        ("vit-h", {"image_size": 518}, 633_470_440),
        ("swin-t", {}, 28_288_354),
        ("swin-b", {}, 87_768_224),
    ],
)
def test_the_models_of_hurt_et_al_have_the_published_number_of_parameters(
    name: str, given: dict[str, Value], parameters: int
) -> None:
    workload = find_workload(name)
    settings = workload.effective({"preset": "plain", **given}, Machine("cpu", None, 2))
    assert memory.parameters_of(build_task(workload, settings)) == parameters
    assert workload.known_parameters(settings) in (parameters, None)  # never that of another size


def test_vit_h_at_518_pixels_has_the_documented_flops() -> None:
    workload = find_workload("vit-h")
    task = build_task(workload, {**workload.fixed, "image_size": 518})
    documented = 1016.717e9  # multiply-adds, as torchvision documents ViT_H_14_Weights.IMAGENET1K_SWAG_E2E_V1
    assert count_flops(task, training=False, recompute=False).per_sample == pytest.approx(2 * documented, rel=0.001)


def test_a_size_that_no_patch_divides_is_refused_before_anything_starts() -> None:
    with pytest.raises(RequestError, match="vit-h cuts an image into patches of 14 pixels; image_size=252 would do"):
        find_workload("vit-h").parse({"image_size": "256"})
    assert find_workload("vit-l").parse({"image_size": "256"}) == {"image_size": 256}
    with torch.device("meta"):
        larger = build_task(find_workload("vit-l"), {"image_size": 256}).model()
    assert sum(parameter.numel() for parameter in larger.parameters()) == 304_326_632 + (16 * 16 - 14 * 14) * 1024


def test_a_tiny_size_is_not_refused_for_the_full_one_s_memory() -> None:
    workload = find_workload("vit-h")
    assert workload.known_parameters({"size": "full"}) == 632_045_800
    assert workload.known_parameters({"size": "tiny"}) is None
    assert workload.known_parameters({"image_size": 518}) is None  # it has more positions
    assert workload.known_parameters({"classes": 100}) is None
    settings = workload.effective({}, Machine("cpu", None, 2))
    memory.refuse_hopeless(None, settings, CPU)
    with pytest.raises(Exception, match="alone need"):
        memory.refuse_hopeless(10**13, settings, CPU)


# Any name of a library


def test_a_library_s_workload_is_found_without_torch() -> None:
    code = (
        "import sys\n"
        "sys.modules['torch'] = None\n"
        "from prony_node.workloads import find_workload\n"
        "from prony_node.contract.machine import Machine\n"
        "workload = find_workload('timm/vit_tiny_patch16_224')\n"
        "assert workload.name == 'timm/vit_tiny_patch16_224' and workload.parameters is None and workload.asks_node\n"
        "assert workload.effective({}, Machine('cuda', 80.0, 8))['image_size'] == 'auto'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(sys.path)}, timeout=300)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("tim/resnet50", "did you mean 'timm/resnet50'"),
        ("timm/", "is not a name of timm"),
        ("torchvision/../resnet18", "is not a name of torchvision"),
    ],
)
def test_what_cannot_be_a_name_is_refused_without_asking(name: str, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        find_workload(name)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("timm/vit_tinny_patch16_224", "unknown timm model .*; did you mean 'vit_tiny_patch16_224'"),
        ("timm/resnet50.a1_in2k", "unknown tag of timm's resnet50 'a1_in2k'; did you mean 'a1_in1k'"),
        ("torchvision/resnet81", "unknown torchvision model 'resnet81'; did you mean 'resnet18'"),
        ("torchvision/fasterrcnn_resnet50_fpn", "unknown torchvision model"),  # which is no classifier
    ],
)
def test_a_misspelt_model_is_answered_with_the_nearest(name: str, said: str) -> None:
    pytest.importorskip(name.partition("/")[0])
    with pytest.raises(RequestError, match=said):
        build_task(find_workload(name), {"image_size": "auto"})
    assert check_name(name)["refused"]


@pytest.mark.parametrize("name", ["timm/resnet18.a1_in1k", "torchvision/vit_b_16", "resnet50"])
def test_a_right_name_is_not_refused(name: str) -> None:
    pytest.importorskip("timm")
    assert check_name(name) == {"refused": None, "unknown": None}


def test_a_library_that_is_not_here_leaves_the_answer_to_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    answer = check_name("timm/resnet50")
    assert answer["refused"] is None
    assert "timm" in answer["unknown"]


@pytest.mark.parametrize(
    ("name", "asked", "size", "classes"),
    [
        ("timm/vit_tiny_patch16_224", "auto", 224, 1000),
        ("timm/vit_tiny_patch16_224", 64, 64, 1000),  # built for one size, so built for this one
        ("timm/efficientnet_b4", "auto", 320, 1000),
        ("timm/vit_small_patch14_dinov2", 28, 28, 1000),  # published without a classifier
        ("torchvision/efficientnet_b4", "auto", 380, 1000),
        ("torchvision/vit_b_16", "auto", 224, 1000),
        ("torchvision/vit_b_16", 64, 64, 1000),
    ],
)
def test_the_library_says_the_size_of_an_image(name: str, asked: Value, size: int, classes: int) -> None:
    pytest.importorskip(name.partition("/")[0])
    settings: dict[str, Value] = {"image_size": asked}
    task = build_task(find_workload(name), settings)
    assert settings["image_size"] == size
    with torch.device("meta"):
        model = task.model()
    assert model(torch.empty(2, 3, size, size, device="meta")).shape == (2, classes)


def test_a_size_that_a_library_s_model_cannot_take_is_a_sentence() -> None:
    with pytest.raises(RequestError, match="torchvision/vit_b_16 cannot be tried without weights at image_size=100: "):
        build_task(find_workload("torchvision/vit_b_16"), {"image_size": 100})


def test_a_library_s_model_trains_and_infers() -> None:
    pytest.importorskip("timm")
    given: dict[str, Value] = {"image_size": 32, "batch_size": 4}
    step = step_of("timm/test_resnet", **given)  # timm's own small one for tests
    batch = step.place(step.task.sample(torch.Generator().manual_seed(0), 4))
    before = step.held_out_loss(batch)
    step.prepare(batch)
    for _ in range(10):
        step(batch)
    assert step.held_out_loss(batch) < before
    answer = step_of("timm/test_resnet", mode="infer", **given)
    answer.prepare(batch)
    assert answer.output is not None
    assert answer.output.isfinite().all()


def test_auxiliary_classifiers_take_part_in_the_loss() -> None:
    class Answers(nn.Module):
        def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return torch.zeros(len(images), 10), torch.zeros(len(images), 10)

    images, labels = torch.zeros(2, 3, 8, 8), torch.zeros(2, dtype=torch.long)
    expected = 1.3 * torch.tensor(10.0).log()
    torch.testing.assert_close(classification_loss(Answers(), (images, labels)), expected)


class Order(nn.Module):
    """A convolution and a batch norm, in the order in which they are named or in the other."""

    def __init__(self, norm_first: bool) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 3, 1, bias=False), nn.BatchNorm2d(3)
        self.norm_first = norm_first
        nn.init.uniform_(self.norm.running_mean, 1, 2)  # type: ignore[arg-type]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(self.norm(x)) if self.norm_first else self.norm(self.conv(x))


@pytest.mark.parametrize("norm_first", [True, False])
def test_batch_norms_are_folded_only_where_that_is_the_same_function(norm_first: bool) -> None:
    torch.manual_seed(0)
    model = Order(norm_first).eval()
    folded = fold_if_same(model, 8)
    assert (folded is model) == norm_first
    assert isinstance(folded.get_submodule("norm"), nn.Identity) != norm_first
