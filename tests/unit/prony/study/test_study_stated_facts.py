"""What the four publications state, transcribed from their texts, against the trials of the shipped studies.

A row that fails says that a trial is not the experiment that was published.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import pytest

from prony.catalog import TableSpec, figures
from prony.study.space import Planned
from prony.study.study import Study
from prony.study.study_file import load_study
from prony_node.contract.machine import Machine
from prony_node.workloads import find_workload

PARAMETERS, DATA, SAMPLES, EPOCHS, MEASURED = "parameters", "data", "samples", "epochs", "measured"
DATASET = "dataset"  # that a part stands for
SHAPE = ("layers", "hidden", "heads")
INCLUDED = ("devices", "workers", "global_batch")  # ours may have further values: one device, say
ROUNDED = 0.002  # relative; parameter counts are stated in tenths of a million
GPU = Machine("cuda", cores=72)


@dataclass(frozen=True)
class Fact:
    """One statement: the values that a setting has in a part, or what else is known of its workload."""

    study: str
    part: str
    workload: str
    fact: str
    values: tuple[object, ...]
    section: str
    where: tuple[tuple[str, object], ...] = ()  # settings of the trials that it is about

    def __str__(self) -> str:
        return f"{self.study} {self.part} {self.workload} {self.fact}"


def hurt(part: str, workload: str, fact: str, *values: object, section: str) -> Fact:
    return Fact("hurt-nrp", part, workload, fact, values, section)


def nasari(part: str, workload: str, fact: str, *values: object, section: str, **where: object) -> Fact:
    return Fact("nasari-pearc22", part, workload, fact, values, section, tuple(where.items()))


def olivia(part: str, fact: str, *values: object, section: str) -> Fact:
    return Fact("olivia-gh200", part, "wideresnet", fact, values, section)


def caraml(part: str, workload: str, fact: str, *values: object, section: str) -> Fact:
    return Fact("caraml", part, workload, fact, values, section)


FACTS = [
    # Hurt et al.: models by their parameters (millions), data sets, devices; neither batch, precision nor epochs.
    *(
        hurt(part, workload, PARAMETERS, count, section="II.A.1")
        for part in ("classify-cifar100", "classify-food101")
        for workload, count in (
            ("resnet50", 25.6),
            ("resnet152", 60.2),
            ("vit-l-32", 306.5),
            ("swin-t", 28.3),
            ("swin-b", 87.8),
        )
    ),
    hurt("classify-vit-h-cifar100", "vit-h", "image_size", 518, section="II.A.1: 633.5 M are vit_h_14 at 518 pixels"),
    hurt("classify-vit-h-food101", "vit-h", "image_size", 518, section="II.A.1: 633.5 M are vit_h_14 at 518 pixels"),
    hurt("segment", "segformer-b4", PARAMETERS, 64.1, section="II.C.1"),
    hurt("classify-cifar100", "resnet50", DATASET, "cifar100", section="II.A.2"),
    hurt("classify-food101", "resnet50", DATASET, "food101", section="II.A.2"),
    hurt("classify-cifar100", "resnet50", "classes", 100, section="II.A.2"),
    hurt("classify-food101", "resnet50", "classes", 101, section="II.A.2"),
    hurt("classify-cifar100", "vit-l-32", EPOCHS, None, section="II: the same length on all machines, not stated"),
    hurt("detect-dino", "dino-swin-l", EPOCHS, None, section="II: the same length on all machines, not stated"),
    hurt("detect-fasterrcnn", "fasterrcnn-r50-fpn", DATASET, "coco", section="II.B"),
    hurt("detect-dino", "dino-swin-l", DATASET, "coco", section="II.B"),
    hurt("segment", "segformer-b4", DATASET, "cityscapes", section="II.C"),
    hurt("segment", "deeplabv3plus-r101", DATASET, "cityscapes", section="II.C"),
    *(
        hurt(part, workload, "devices", 1, 4, section="II")
        for part, workload in (
            ("classify-cifar100", "resnet50"),
            ("classify-cifar100", "resnet152"),
            ("classify-cifar100", "vit-l-32"),
            ("classify-cifar100", "swin-t"),
            ("classify-food101", "swin-b"),
            ("classify-vit-h-cifar100", "vit-h"),
            ("classify-vit-h-food101", "vit-h"),
            ("detect-fasterrcnn", "fasterrcnn-r50-fpn"),
            ("detect-dino", "dino-swin-l"),
            ("segment", "segformer-b4"),
            ("segment", "deeplabv3plus-r101"),
        )
    ),
    *(
        fact
        for part, workload in (("infer-resnet50", "resnet50"), ("infer-swin-t", "swin-t"))
        for fact in (
            hurt(part, workload, "mode", "infer", section="II.A.4"),
            hurt(part, workload, "devices", 1, 4, section="II.A.4, Fig. 2"),
            hurt(part, workload, DATASET, "imagenet", section="II.A.4"),
        )
    ),
    # Nasari et al.: batches and devices; mixed precision in TensorFlow.
    nasari("epochs", "resnet50", PARAMETERS, 25.6, section="3: ResNet50 v1.5"),
    nasari("epochs", "resnet50", DATA, "imagenet", section="3"),
    nasari("epochs", "resnet50", "devices", 1, 2, 4, 8, 16, section="Table 1"),
    nasari("epochs", "resnet50", "precision", "tf32", "fp16", section="3.1, Figure 1: TF32 and mixed precision"),
    nasari("figure-2", "resnet50", "precision", "fp16", section="3.3.2, Figure 2: mixed precision"),
    nasari("figure-2", "resnet50", "batch_size", 256, section="3.3.2: batch 256 on the GPUs"),
    nasari("figure-2", "resnet50", "preset", "plain", section="3.3.2: TensorFlow 1.15 as it comes"),
    nasari("figure-2", "resnet50", "grad_accumulation", 1, section="3.3.1: accumulation is of the IPUs"),
    nasari("figure-2", "resnet50", "devices", 1, 2, 4, 8, section="Figure 2: over the number of devices"),
    nasari("figure-2", "resnet50", EPOCHS, 1, section="3.3.2: one epoch"),
    nasari("figure-2", "resnet50", DATA, "imagenet", section="3.3.2"),
    nasari(
        "models", "efficientnet-b0", "devices", 2, 4, section="Table 2 (2 replicas of 2 IPUs), 3.2 (2 A100, 4 V100)"
    ),
    nasari("models", "efficientnet-b4", "devices", 16, section="Table 2 (4 replicas of 4 IPUs)"),
    nasari("models", "mobilenetv3-small", "devices", 4, section="Table 2"),
    nasari("models", "mobilenetv3-large", "devices", 16, section="Table 2"),
    nasari("bert", "bert-base-squad", "devices", 4, section="Table 2"),
    nasari("batches", "resnet50", "batch_size", 2, 4, 8, 14, 16, 18, 20, section="3.3.1, Table 3"),
    nasari("batches", "resnet50", "precision", "fp16", section="3.3.1: mixed precision"),
    nasari("batches", "resnet50", EPOCHS, 1, section="3.3.1: one epoch"),
    nasari("batches", "resnet50", "grad_accumulation", 24, section="3.3.1: 24 batches of 20, 480 images an update"),
    nasari("replicas", "resnet50", "batch_size", 20, section="Table 3"),
    nasari("replicas", "resnet50", "devices", 2, 4, 8, 16, 64, section="Table 3"),
    nasari("replicas", "resnet50", "batch_norm", 2, section="3.3.1: batch norm over 2 IPUs"),
    nasari("replicas", "resnet50", "precision", "fp16", section="3.3.1: mixed precision"),
    nasari("autoencoder", "compression-autoencoder", "batch_size", 10, 128, 256, 512, section="Table 4"),
    nasari("autoencoder", "compression-autoencoder", "devices", 1, 2, section="Table 4"),
    nasari("autoencoder", "compression-autoencoder", DATA, "mnist", section="3.4"),
    nasari("autoencoder", "compression-autoencoder", SAMPLES, 70_000, section="3.4: scaled to 70,000 images"),
    nasari("autoencoder-replicas", "compression-autoencoder", "devices", 4, 8, 16, section="Table 4"),
    nasari("autoencoder-replicas", "compression-autoencoder", "batch_size", 10, section="3.4"),
    # The GH200 guide: everything but the optimizer.
    olivia("baseline", DATA, "cifar100", section="Model & Dataset"),
    olivia("baseline", "classes", 100, section="Model & Dataset"),
    olivia("baseline", "image_size", 32, section="Model & Dataset"),
    olivia("baseline", SAMPLES, 50_000, section="Model & Dataset"),
    olivia("baseline", MEASURED, "accuracy_epoch_10", section="Tests 1 to 4: accuracy after epoch 10"),
    olivia("baseline", "devices", 1, section="Test 1"),
    olivia("baseline", "batch_size", 32, section="Test 1"),
    olivia("baseline", "workers", 0, section="Test 1"),
    olivia("baseline", "precision", "default", section="Test 1: FP32 without any switch"),
    olivia("optimised", "devices", 1, section="Test 4"),
    olivia("optimised", "batch_size", 32, section="Test 4"),
    olivia("optimised", "workers", 32, section="Test 4"),
    olivia("optimised", "precision", "bf16", section="Test 4"),
    olivia("optimised", "prefetch", 4, section="Optimizations Applied"),
    olivia("node", "devices", 4, section="Test 2"),
    olivia("node", "batch_size", 256, section="Test 2"),
    olivia("node", "workers", 8, section="Test 2"),
    olivia("node", "precision", "fp16", section="Test 2"),
    olivia("two-nodes", "devices", 8, section="Test 3"),
    olivia("two-nodes", "nodes", 2, section="Test 3"),
    olivia("two-nodes", "batch_size", 256, section="Test 3"),
    olivia("two-nodes", "workers", 8, section="Test 3"),
    olivia("two-nodes", "precision", "fp16", section="Test 3"),
    *(
        fact
        for part, tests in (("workers", "Tests 8 to 12"), ("aggressive", "Test 5, which is the row with 32 workers"))
        for fact in (
            olivia(part, "batch_size", 256, section=tests),
            olivia(part, "precision", "bf16", section=tests),
            olivia(part, "devices", 4, section=tests),
            olivia(part, "cores", "25%", section="Investigation 1: 72 of 288 CPUs in the original request"),
        )
    ),
    olivia("workers", "workers", 4, 8, 16, section="Tests 8 to 12"),
    olivia("workers", "prefetch", 2, section="not stated in tests 8 to 12: torch's default"),
    olivia("precisions", "prefetch", 2, section="not stated in tests 8 to 12: torch's default"),
    olivia("node", "prefetch", 2, section="not stated in test 2: torch's default"),
    olivia("two-nodes", "prefetch", 2, section="not stated in test 3: torch's default"),
    olivia("aggressive", "workers", 32, section="Test 5"),
    olivia("aggressive", "prefetch", 4, section="Test 5: the optimizations of test 4"),
    olivia("allocation", "prefetch", 4, section="Test 6: test 5 with more CPUs"),
    olivia("independent", "prefetch", 4, section="Test 13: four trainings as in test 4"),
    olivia("precisions", "precision", "default", "bf16", section="Tests 8 to 12; fp16 is in the part node"),
    olivia("precisions", "workers", 8, section="Tests 8 to 12"),
    olivia("precisions", "cores", "25%", section="Investigation 1: 72 of 288 CPUs in the original request"),
    olivia("node", "cores", "25%", section="Investigation 1: 72 of 288 CPUs in the original request"),
    olivia("allocation", "cores", "100%", section="Test 6: 288 CPUs"),
    olivia("allocation", "workers", 16, 32, 48, section="Test 6"),
    olivia("allocation", "precision", "bf16", section="Test 6"),
    olivia("numa", "bind", "numa", section="Test 7"),
    olivia("numa", "workers", 32, section="Test 7"),
    olivia("independent", "parallel", "independent", section="Test 13"),
    olivia("independent", "workers", 32, section="Test 13"),
    olivia("independent", "precision", "bf16", section="Test 13"),
    olivia("independent", "bind", "numa", section="Test 13"),
    # CARAML: the slides, and the suite's repository for what they leave out.
    caraml("gpt", "gpt-800m", "layers", 16, section="repository"),
    caraml("gpt", "gpt-800m", "hidden", 2048, section="repository"),
    caraml("gpt", "gpt-800m", "heads", 8, section="repository"),
    caraml("gpt", "gpt-800m", "sequence", 2048, section="repository"),
    caraml("gpt", "gpt-800m", "precision", "fp16", section="repository"),
    caraml("gpt", "gpt-800m", DATA, "oscar", section="slides: NLP Benchmark on GPU"),
    caraml("gpt", "gpt-800m", "devices", 1, 4, section="slides: DP 4, and 1 on JURECA's GH200"),
    caraml("gpt", "gpt-800m", "global_batch", *(16 * 2**step for step in range(6)), section="charts"),
    caraml("gpt", "gpt-800m", "batch_size", 4, section="repository: micro-batch"),
    caraml("gpt", "gpt-800m", "optimizer", "adam", section="repository"),
    caraml("gpt", "gpt-800m", "recompute", "selective", section="repository"),
    caraml("gpt", "gpt-800m", "kernels", "flash-attention", section="repository"),
    caraml("gpt-8", "gpt-800m", "devices", 8, section="slides: DP 8 on MI250 as a GPU; the suite's README"),
    caraml("gpt-8", "gpt-800m", "batch_size", 4, section="repository: micro-batch"),
    caraml("gpt-117m-pipeline", "gpt-117m", "devices", 4, section="slides: NLP Benchmark on Graphcore IPU M2000 POD4"),
    caraml("gpt-117m-pipeline", "gpt-117m", "pp", 4, section="slides: pipeline parallelism of 4"),
    caraml("gpt-117m-pipeline", "gpt-117m", "batch_size", 1, section="repository: micro-batch"),
    *(
        caraml(name, name, fact, value, section="repository")
        for name, shape in (
            ("gpt-13b", {"layers": 40, "hidden": 5120, "heads": 32, "batch_size": 2}),
            ("gpt-175b", {"layers": 96, "hidden": 12288, "heads": 96, "batch_size": 2}),
        )
        for fact, value in shape.items()
    ),
    caraml("gpt-13b", "gpt-13b", "tp", 2, section="repository"),
    caraml("gpt-13b", "gpt-13b", "pp", 2, section="repository"),
    caraml("gpt-175b", "gpt-175b", "tp", 8, section="repository"),
    caraml("gpt-175b", "gpt-175b", "pp", 8, section="repository"),
    caraml("gpt-175b", "gpt-175b", "precision", "bf16", section="repository"),
    caraml("resnet-3", "resnet50", "devices", 3, section="chart resnet_3"),
    caraml("gpt-117m", "gpt-117m", "global_batch", *(64 * 2**step for step in range(9)), section="slides: table"),
    caraml("gpt-117m", "gpt-117m", DATA, "synthetic", section="slides: table"),
    caraml("resnet", "resnet50", PARAMETERS, 25.6, section="slides: ResNet50"),
    caraml("resnet", "resnet50", "precision", "fp16", section="repository: --use_fp16=True"),
    caraml("resnet", "resnet50", DATA, "imagenet", section="slides: CV Benchmark on GPU"),
    caraml("resnet", "resnet50", SAMPLES, 1_281_167, section="slides: titles of the charts"),
    caraml("resnet", "resnet50", "devices", 1, 2, 4, section="charts resnet_1, resnet_2 and resnet_4"),
    caraml("resnet", "resnet50", "global_batch", *(16 * 2**step for step in range(9)), section="slides: table; charts"),
]
# Stated, and other in Prony on purpose; the study file says so, in these words.
OTHER = [
    (olivia("baseline", PARAMETERS, 25.0, section="Model & Dataset: about 25 M"), "ours has 17.2 million"),
    (caraml("gpt-13b", "gpt-13b", "precision", "fp16", section="repository"), "it has bf16"),
    (caraml("resnet", "resnet50", "model", "resnet50_v2", section="slides"), "ours is torchvision's ResNet-50 v1.5"),
    (caraml("gpt", "gpt-800m", "schedule", "cosine", section="repository: 1e-4 to 1e-5"), "falls linearly to 0"),
]


@cache
def study_of(name: str) -> Study:
    return load_study(name, "full", (), find_workload)


def trials_of(fact: Fact) -> list[Planned]:
    """The trials of this part and workload that the statement is about."""
    found = [one for one in load_part(fact.study, fact.part) if one.trial.workload == fact.workload]
    assert found, f"the part {fact.part} has no trial of {fact.workload}"
    return [one for one in found if all(one.trial.settings.get(name) == value for name, value in fact.where)]


@cache
def load_part(study: str, part: str) -> list[Planned]:
    return load_study(study, "full", (), find_workload, (part,)).planned()


def tables_of(fact: Fact) -> list[TableSpec]:
    return [one for one in study_of(fact.study).tables if any(f.workload == fact.workload for f in one.chosen())]


def found_values(fact: Fact) -> set[object]:
    """What the study has of this fact."""
    trials = trials_of(fact)
    if fact.fact == DATASET:
        return {name for one in trials for name in one.datasets}
    if fact.fact in SHAPE:
        return {one.workload.shape[fact.fact] for one in trials}
    if fact.fact == DATA:
        publications = {one.figures for one in tables_of(fact)}
        return {figure.dataset for name in publications for figure in figures(name) if figure.workload == fact.workload}
    if fact.fact == SAMPLES:
        return {count for table in tables_of(fact) for count in table.samples.values()}
    if fact.fact == EPOCHS:
        return {table.epochs for table in tables_of(fact)}
    if fact.fact == MEASURED:
        return {metric for table in tables_of(fact) for metric in table.metrics} & set(fact.values)
    effective = [one.workload.effective(one.trial.settings, GPU) for one in trials]
    return {values[fact.fact] for values in effective if fact.fact in values}


def check(fact: Fact) -> None:
    if fact.fact == PARAMETERS:
        (counts,) = {one.workload.parameters for one in trials_of(fact)}
        assert counts is not None
        assert counts / 1e6 == pytest.approx(fact.values[0], rel=ROUNDED)
        return
    found, stated = found_values(fact), set(fact.values)
    if fact.fact in INCLUDED:
        assert stated - found == set()
    else:
        assert found == stated


@pytest.mark.parametrize("fact", FACTS, ids=str)
def test_the_trials_are_what_the_publication_states(fact: Fact) -> None:
    check(fact)


@pytest.mark.parametrize(("fact", "words"), OTHER, ids=str)
def test_what_is_other_on_purpose_is_said_in_the_study(fact: Fact, words: str) -> None:
    with pytest.raises(AssertionError):
        check(fact)
    study = study_of(fact.study)
    assert any(words in text for text in (*(one.what for one in study.stated), *study.cannot))


def test_our_wideresnet_has_as_many_parameters_as_the_study_says() -> None:
    (parameters,) = {one.workload.parameters for one in load_part("olivia-gh200", "baseline")}
    assert parameters is not None
    assert f"{parameters / 1e6:.1f}" == "17.2"


@pytest.mark.parametrize(
    ("study", "words", "section"),
    [("hurt-nrp", "with MMSegmentation's pre-trained weights", "section II.C"),
     ("nasari-pearc22", "GPUs in TF32 and in mixed precision", "section 3.1")],
)  # fmt: skip
def test_what_is_stated_and_no_setting_is_in_the_list(study: str, words: str, section: str) -> None:
    assert [one.source.startswith(section) for one in study_of(study).stated if words in one.what] == [True]


def test_every_part_of_a_publication_has_a_stated_fact() -> None:
    ours = {("olivia-gh200", "copies")}  # not in the guide
    facts = {(fact.study, fact.part) for fact in FACTS}
    for name in ("caraml", "hurt-nrp", "nasari-pearc22", "olivia-gh200"):
        assert {(name, part.name) for part in study_of(name).parts} - ours <= facts
