"""Ours beside a published figure: the right trial, the ratio that both allow, what differs, why a cell is empty."""

from __future__ import annotations

from typing import Any

import pytest
from documents import of_documents

from prony.analysis.published_tables import EPOCHS, NOT_RUN, TINY, Cell, StudyResults, Table, fill
from prony.catalog import TableSpec
from prony.report.published import body, heads, published_lines
from prony.study.space import expand
from prony.study.study_file import load_study
from prony_node.contract.trial import Trial
from prony_node.workloads import find_workload

fill = of_documents(fill)


def spec_of(study: str, title: str) -> TableSpec:
    return next(one for one in load_study(study, None, (), find_workload).tables if one.title.startswith(title))


def record_of(trial: Trial, rate: float, **metrics: float) -> dict[str, Any]:
    devices = int(str(trial.settings.get("devices", 1)))
    values = {"throughput": rate, "throughput_per_device": rate / devices, **metrics}
    effective = {"precision": "fp32", "data": "device", "batch_size": 64, "compile": "off", **trial.settings}
    return {
        "id": f"{trial.workload}-{trial.hash}", "status": "ok", "unit": "images",
        "phases": {"cold_start": {"steps": 4}},
        "trial": {"workload": trial.workload, "settings": trial.settings, "effective": effective},
        "metrics": {name: {"value": value} for name, value in values.items()},
        "work": {"units": 1000, "steps": 10}, "facts": {"devices": [{"name": "NVIDIA H200"}]},
    }  # fmt: skip


def out_of_memory(trial: Trial) -> dict[str, Any]:
    return {**record_of(trial, 1.0), "status": "failed", "failure": {"kind": "out-of-memory"}}


def filled(spec: TableSpec, *records: dict[str, Any], also: tuple[Trial, ...] = ()) -> Table:
    by_trial: dict[str, list[dict[str, Any]]] = {}
    trials = {}
    for record in records:
        trial = Trial(record["trial"]["workload"], record["trial"]["settings"])
        trials[trial.hash] = trial
        by_trial.setdefault(trial.hash, []).append(record)
    return fill(spec, StudyResults([*trials.values(), *also], by_trial, {one.hash: "no such device" for one in also}))


def cell_of(table: Table, **fields: object) -> Cell:
    found = [
        cell for cell in table.cells() if all(getattr(cell.figure, name) == value for name, value in fields.items())
    ]
    assert len(found) == 1
    return found[0]


def test_a_time_of_epochs_that_nobody_states_has_no_ratio_but_a_number_of_ours() -> None:
    one = Trial("resnet50", {"devices": 1, "batch_size": 64})
    four = Trial("resnet50", {"devices": 4, "batch_size": 64})
    table = filled(spec_of("hurt-nrp", "Table I:"), record_of(one, 1000.0), also=(four,))
    cell = cell_of(table, workload="resnet50", dataset="food101", system="GH200")
    # Without `classes` the trial stands beside both data sets: 75,750 images at 1,000 a second.
    assert cell.ours is not None
    assert (cell.kind, cell.ours.value) == (EPOCHS, pytest.approx(75.75 / 60))
    assert cell.ratio == pytest.approx(44.01 * 60 / 75.75)
    assert cell_of(table, workload="resnet50", dataset="food101", system="4xA100").why == "no such device"
    assert {one.name for one in cell.differs} == {"device", "precision", "data", "batch per device"}
    assert "ours, devices=4" in heads(table)


def test_a_data_set_of_its_own_fills_its_own_rows() -> None:
    trial = Trial("resnet50", {"devices": 1, "classes": 100})
    table = filled(spec_of("hurt-nrp", "Table I:"), record_of(trial, 1000.0))
    assert cell_of(table, workload="resnet50", dataset="cifar100", system="GH200").ratio is not None
    assert cell_of(table, workload="resnet50", dataset="food101", system="GH200").ours is None


def test_a_run_on_one_data_set_never_fills_a_row_of_another() -> None:
    spec = spec_of("hurt-nrp", "Table I:")
    trial = Trial("resnet50", {"devices": 1, "data": "./set"})

    def filled_rows(source: str, kind: str, stands_for: str = "") -> list[str]:
        record = {**record_of(trial, 1000.0), "data": {"source": source, "kind": kind}}
        datasets = {trial.hash: {stands_for}} if stands_for else {}
        table = fill(spec, StudyResults([trial], {trial.hash: [record]}, datasets=datasets))
        cells = [cell for cell in table.cells() if cell.figure.system == "GH200" and cell.ours is not None]
        return sorted(cell.figure.dataset for cell in cells)

    assert filled_rows("./set", "food101") == ["food101"]
    assert filled_rows("./set", "imagenet") == []
    assert filled_rows("generated", "imagenet") == ["cifar100", "food101"]  # as what is made on the device
    # A folder for each class may hold any images: the part says which.
    assert filled_rows("./set", "imagenet", stands_for="food101") == ["food101"]
    assert filled_rows("./set", "shards", stands_for="cifar100") == ["cifar100"]
    assert filled_rows("./set", "food101", stands_for="cifar100") == []  # the wrong path was given


def test_the_published_gaps_of_inference_have_a_cell_and_ours_a_table() -> None:
    trial = Trial("resnet50", {"mode": "infer", "devices": 4, "data": "./imagenet", "epochs": 1})
    figures = {"split_time": 20.0, "split_throughput": 2500.0, "quality": 0.76}
    record = record_of(trial, 2600.0, **figures)
    gap = cell_of(filled(spec_of("hurt-nrp", "Figure 2"), record), workload="resnet50")
    assert (gap.figure.value, gap.figure.unit, gap.ratio) == (41.7, "%", None)
    assert "two systems" in str(gap.why)
    (row,) = filled(spec_of("hurt-nrp", "Inference of two"), record).rows
    assert row.key == ("resnet50", "4")
    assert [ours.value for ours in row.ours.values()] == [2600.0, *figures.values()]


def test_a_rate_on_several_devices_is_held_to_one_of_ours_device_by_device_and_a_time_is_not() -> None:
    trial = Trial("resnet50", {"preset": "plain", "precision": "fp16", "devices": 1, "batch_size": 20})
    spec = spec_of("nasari-pearc22", "Table 3")
    table = filled(spec, record_of(trial, 4000.0))
    alone = cell_of(table, devices=1, batch_per_device=20, metric="throughput")
    assert (alone.ratio, alone.per_device) == (pytest.approx(4000 / 2130), False)
    many = cell_of(table, devices=16, metric="throughput")
    assert (many.ratio, many.per_device) == (pytest.approx(4000 / (30170 / 16)), True)
    assert "devices" in {one.name for one in many.differs}
    assert cell_of(table, devices=16, metric="time").ours is None
    assert any("30,170 (×2.12 d)" in row and "4,000 (1 device)" in row for row in body(table))

    sixteen = Trial("resnet50", {"preset": "plain", "precision": "fp16", "devices": 16, "batch_size": 20})
    both = filled(spec, record_of(trial, 4000.0), record_of(sixteen, 60340.0))
    many = cell_of(both, devices=16, metric="throughput")
    assert (many.ratio, many.per_device) == (pytest.approx(2.0), False)


def test_a_published_rate_stands_beside_the_run_with_its_share_of_the_cores() -> None:
    """Of Olivia's tests, 5 and 8 to 12 had 72 of 288 cores, 6 had all."""
    words = {"devices": 4, "precision": "bf16", "batch_size": 256, "workers": 32}
    quarter, every = (Trial("wideresnet", {**words, "cores": cores}) for cores in ("25%", "100%"))
    records = [record_of(quarter, 30_000.0), record_of(every, 60_000.0)]

    def rate_beside(title: str, place: str, *those: dict[str, Any]) -> float | None:
        cell = cell_of(
            filled(spec_of("olivia-gh200", title), *those), place=place, workers_per_device=32, metric="throughput"
        )
        return cell.ours.value if cell.ours is not None else None

    assert rate_beside("Tests 1 to 5", "Test 5", *records) == 30_000.0
    assert rate_beside("Tests 8 to 12", "Tests 8-12", *records) == 30_000.0
    assert rate_beside("Test 6", "Test 6", *records) == 60_000.0
    assert rate_beside("Tests 8 to 12", "Tests 8-12", records[1]) is None
    assert rate_beside("Tests 1 to 5", "Test 5", records[1]) is None
    assert rate_beside("Test 6", "Test 6", records[0]) is None
    # Of test 4 the cores are not stated, so a run with any share stands beside it.
    alone = Trial("wideresnet", {"devices": 1, "precision": "bf16", "batch_size": 32, "workers": 32, "cores": "1"})
    assert rate_beside("Tests 1 to 5", "Test 4", record_of(alone, 4000.0)) == 4000.0


def test_the_energy_of_an_epoch_on_ipus_has_a_ratio_and_that_of_runs_of_unknown_length_none() -> None:
    trial = Trial("resnet50", {"devices": 2, "global_batch": 16})
    spec = spec_of("caraml", "ResNet-50 on 2 to 4 devices: energy")
    table = filled(spec, record_of(trial, 1000.0, samples_per_wh=10_000.0))
    epoch = cell_of(table, accelerator="GC200", devices=2, global_batch=16)
    assert epoch.ratio == pytest.approx(1281167 / 10_000 / 2 / 20.28)
    run = cell_of(table, accelerator="A100-40GB-SXM", devices=2, global_batch=16)
    assert (run.ratio, run.why) == (None, "the length of the published runs is not stated")


def test_the_first_epoch_counts_the_cold_start() -> None:
    trial = Trial("resnet50", {"devices": 1, "precision": "fp16"})
    table = filled(spec_of("nasari-pearc22", "Table 1:"), record_of(trial, 5000.0, cold_start=60.0))
    cell = cell_of(table, devices=1, metric="throughput_first_epoch")
    assert cell.ours is not None
    assert cell.ours.value == pytest.approx(1281167 / (60 + (1281167 - 4 * 100) / 5000))


def test_energy_without_a_run_length_has_no_ratio_and_says_so() -> None:
    trial = Trial("resnet50", {"preset": "published", "devices": 1, "global_batch": 256})
    record = record_of(trial, 5000.0, samples_per_wh=40000.0)
    cell = cell_of(filled(spec_of("caraml", "ResNet-50 over global batches and devices: energy"), record),
                   system="WestAI H100", global_batch=256)  # fmt: skip
    assert cell.ours is not None
    assert (cell.ours.value, cell.ours.unit, cell.ratio) == (25.0, "Wh per million images", None)
    assert cell.why == "the length of the published runs is not stated"


def test_energy_of_runs_of_an_assumed_length_is_compared_as_power_and_as_work_per_energy() -> None:
    trial = Trial("gpt-800m", {"preset": "published", "devices": 4, "global_batch": 16})
    spec = spec_of("caraml", "GPT of 800 million parameters over global batches: mean power")
    table = filled(spec, record_of(trial, 80_000.0, power=1684.0, samples_per_wh=87_247.0))
    power = cell_of(table, metric="power_per_device", system="JURECA A100", global_batch=16)
    assert (power.figure.value, power.figure.unit, power.ratio) == (421.0, "W", pytest.approx(1.0))
    assert power.figure.note == "calculated from 421 Wh, for a run of 1 h (assumed)"
    work = cell_of(table, metric="tokens_per_energy", system="JURECA A100", global_batch=16)
    assert work.figure.value == pytest.approx(166e12 / 8.135e9 * 3600 / 421, rel=1e-3)
    assert work.ratio == pytest.approx(87_247.0 / work.figure.value), "ours is measured, not scaled"


def test_three_devices_have_what_is_left_of_dividing_the_global_batch() -> None:
    trial = Trial("resnet50", {"preset": "published", "devices": 3, "batch_size": 5})
    spec = spec_of("caraml", "ResNet-50 on 2 to 4 devices: images")
    table = filled(spec, record_of(trial, 1473.0))
    cell = cell_of(table, system="WestAI H100", devices=3, global_batch=16)
    assert cell.ratio == pytest.approx(1.0)
    assert [(one.a, one.b) for one in cell.differs if one.name == "global batch"] == [(16, 15)]
    assert cell_of(table, system="WestAI H100", devices=3, global_batch=32).ours is None
    assert "JURECA MI250, MI250-GCD" in heads(table), "as dies, and so named"


def test_flops_are_counted_as_the_publication_counts_them() -> None:
    trial = Trial("gpt-800m", {"preset": "published", "devices": 4, "global_batch": 2048})
    spec = spec_of("caraml", "GPT of 800 million parameters over global batches: TFLOP/s")
    cell = cell_of(filled(spec, record_of(trial, 158152.8)), place="suite README", global_batch=2048)
    assert cell.ratio == pytest.approx(1.0, abs=1e-3)


def test_out_of_memory_is_an_answer_and_so_is_what_was_not_run() -> None:
    small = Trial("resnet50", {"preset": "published", "devices": 1, "global_batch": 1024})
    large = Trial("resnet50", {"preset": "published", "devices": 1, "global_batch": 2048})
    spec = spec_of("caraml", "ResNet-50 over global batches and devices: images")
    known = StudyResults([small, large], {large.hash: [out_of_memory(large)]})
    table = fill(spec, known)
    assert cell_of(table, system="WestAI H100", global_batch=2048).why == "out-of-memory"
    assert cell_of(table, system="WestAI H100", global_batch=1024).why == NOT_RUN
    assert "- [2] not run yet" in published_lines(table)


def test_a_tiny_model_has_no_ratio() -> None:
    trial = Trial("resnet50", {"preset": "published", "devices": 1, "global_batch": 16, "size": "tiny"})
    spec = spec_of("caraml", "ResNet-50 over global batches and devices: images")
    cell = cell_of(filled(spec, record_of(trial, 3.0)), system="WestAI H100", global_batch=16)
    assert (cell.ratio, cell.why) == (None, TINY)
    assert "model" in {one.name for one in cell.differs}


def test_flops_of_a_whole_model_are_not_those_of_a_tiny_one() -> None:
    trial = Trial("gpt-800m", {"preset": "published", "devices": 1, "global_batch": 16, "size": "tiny"})
    spec = spec_of("caraml", "GPT of 800 million parameters over global batches: TFLOP/s")
    cell = cell_of(filled(spec, record_of(trial, 700.0)), system="JURECA GH200", global_batch=16)
    assert cell.ours is not None
    assert cell.ours.value is None
    assert "size=tiny" in str(cell.why)


def test_an_epoch_may_be_a_number_of_batches_and_its_energy_that_of_one_of_as_many_devices() -> None:
    one = Trial("gpt-117m", {"devices": 1, "global_batch": 64, "batch_size": 64})
    four = Trial("gpt-117m", {"devices": 4, "pp": 4, "global_batch": 64, "batch_size": 1, "grad_accumulation": 64})
    spec = spec_of("caraml", "GPT of 117 million")
    wanted = {"metric": "energy_per_epoch_per_device", "global_batch": 64}
    per_wh = 4.08 * 1024  # tokens, where the publication counts sequences of 1,024
    cell = cell_of(filled(spec, record_of(four, 1000.0, samples_per_wh=per_wh)), **wanted)
    assert cell.ours is not None
    assert cell.ours.value == pytest.approx(4 * 64 / 4.08 / 4)
    assert cell.figure.value == pytest.approx(cell.ours.value, abs=0.01)  # 15.68 Wh on each of four, 4.08 per watt-hour
    assert (cell.ratio, cell.why) == (None, "the published energy is of more than the steps of an epoch")
    alone = filled(spec, record_of(one, 1000.0, samples_per_wh=per_wh), also=(four,))
    assert cell_of(alone, **wanted).why == "no such device", "one device does four times the work of one of four"
    rate = cell_of(alone, metric="throughput", global_batch=64)
    assert rate.ratio == pytest.approx(1000 / 1024 / (64.99 / 4)), "sequences/s of one device"
    per_energy = cell_of(alone, metric="tokens_per_energy", global_batch=64)
    assert per_energy.ours is not None
    assert per_energy.ours.value == pytest.approx(4.08), "work is work on any device"
    assert "ours, tokens per energy, devices=1" in heads(alone), "what a ratio is made of is shown"


def test_columns_stand_in_the_order_of_the_metrics_each_with_its_unit() -> None:
    names = heads(filled(spec_of("olivia-gh200", "Tests 1 to 5")))
    assert names[-3:] == ["throughput, img/s", "epoch time, s", "accuracy epoch 10"]
    assert heads(filled(spec_of("hurt-nrp", "Table I:")))[-3:] == ["1xA100", "4xA100", "GH200"]


def test_the_same_device_and_settings_do_not_differ() -> None:
    settings = {"devices": 1, "precision": "fp16", "global_batch": 256, "data": "/sets/imagenet"}
    record = record_of(Trial("resnet50", settings), 5000.0)
    record["trial"]["effective"]["batch_size"] = 256
    record["facts"] = {"devices": [{"name": "NVIDIA A100-SXM4-40GB"}]}
    spec = spec_of("caraml", "ResNet-50 over global batches and devices: images")
    cell = cell_of(filled(spec, record), system="JURECA A100", global_batch=256)
    assert [one.name for one in cell.differs] == ["framework"]


def test_accumulated_batches_are_no_larger_batch_per_device() -> None:
    trial = Trial("resnet50", {"devices": 1, "batch_size": 20, "grad_accumulation": 24, "preset": "plain"})
    table = filled(spec_of("nasari-pearc22", "Table 3"), record_of(trial, 1134.0))
    cell = cell_of(table, devices=1, batch_per_device=20, metric="throughput")
    assert cell.ratio is not None
    assert "batch per device" not in {one.name for one in cell.differs}


def test_what_speaks_against_a_run_stands_beside_its_value() -> None:
    trial = Trial("resnet50", {"devices": 1, "batch_size": 20, "grad_accumulation": 24, "preset": "plain"})
    record = record_of(trial, 1000.0)
    record["metrics"]["throughput"] |= {"low": 900.0, "high": 1100.0}
    record["checks"] = [{"name": "blocks", "level": "warn"}, {"name": "loss", "level": "pass"}]
    lines = published_lines(filled(spec_of("nasari-pearc22", "Table 3"), record))
    assert any("1,000 ± 10 %*" in line for line in lines)
    assert "- * Checks of these runs warn: blocks." in lines
    assert any(line.startswith("- ± is half of a 95 % CI within one run") for line in lines)


def test_energy_whose_checks_fail_is_none_and_the_rate_stays() -> None:
    trial = Trial("gpt-800m", {"devices": 1, "global_batch": 16, "preset": "published", "grad_accumulation": 4})
    record = record_of(trial, 1000.0, samples_per_wh=300_000.0, power=600.0)
    record["checks"] = [{"name": "energy-agreement", "level": "fail"}]
    title = "GPT of 800 million parameters over global batches: mean power"
    cells = filled(spec_of("caraml", title), record).cells()
    assert {cell.why for cell in cells if cell.figure.global_batch == 16} == {"failed check: energy-agreement"}
    rates = filled(spec_of("caraml", "GPT of 800 million parameters over global batches: TFLOP/s"), record)
    assert rates.has_ours


def test_repeats_are_one_value() -> None:
    trial = Trial("resnet50", {"devices": 1, "global_batch": 256})
    spec = spec_of("caraml", "ResNet-50 over global batches and devices: images")
    table = filled(spec, *(record_of(trial, rate) for rate in (1000.0, 2000.0, 4000.0)))
    cell = cell_of(table, system="WestAI H100", global_batch=256)
    assert cell.ours is not None
    assert (cell.ours.value, len(cell.ours.runs)) == (2000.0, 3)
    assert cell.to_json()["ratio"] == pytest.approx(2000 / 3969)


def test_a_quarter_of_the_cores_stands_beside_72_of_288_with_the_cpu_utilisation_of_both() -> None:
    shared = {"devices": 4, "precision": "bf16", "batch_size": 256, "workers": 32}
    quarter, whole = (Trial("wideresnet", {**shared, "cores": share}) for share in ("25%", "100%"))
    records = [record_of(quarter, 15_609.0, cpu_utilisation=0.4), record_of(whole, 31_500.0, cpu_utilisation=0.1)]
    spec = spec_of("olivia-gh200", "Test 6 and Investigation 1")
    table = filled(spec, *records)
    rate = {"metric": "throughput", "workers_per_device": 32}
    assert cell_of(table, **rate, cpus=288).ratio == pytest.approx(1.0)
    assert cell_of(table, **rate, cpus=72).ratio == pytest.approx(0.5)
    busy = cell_of(table, metric="cpu_utilisation", note="highest observed")
    assert busy.ours is not None
    assert (busy.figure.value, busy.ours.value, busy.ratio) == (0.12, 0.4, None)
    assert heads(table)[-2:] == ["ours, throughput", "ours, cpu utilisation"]
    ours = {row.key: [one.value for one in row.ours.values()] for row in table.rows if row.ours}
    # Of 288 CPUs no utilisation is published; ours stands there all the same.
    assert ours == {("4", "32", "72"): [15_609.0, 0.4], ("4", "32", "288"): [31_500.0, 0.1]}
    alone = record_of(Trial("wideresnet", {**shared, "devices": 1, "cores": "25%"}), 4000.0, cpu_utilisation=0.3)
    (row,) = [row for row in filled(spec, alone).rows if row.ours]
    assert [one.value for one in row.ours.values()] == [4000.0, 0.3], "a share of the cores, on however many devices"


def test_what_only_one_system_does_not_state_is_said_with_its_name() -> None:
    trial = Trial("resnet50", {"preset": "published", "devices": 1, "global_batch": 256, "precision": "bf16"})
    spec = spec_of("caraml", "ResNet-50 over global batches and devices: images")
    differs = filled(spec, record_of(trial, 9.0)).differs()
    (precision,) = [one for one in differs if one.name == "precision"]
    assert precision.published == ("not stated (JURECA IPU-M2000)", "fp16")
    ipu = filled(spec_of("caraml", "ResNet-50 on one IPU"), record_of(trial, 9.0, samples_per_wh=5.0)).differs()
    assert [one.published for one in ipu if one.name == "precision"] == [("not stated",)]


def test_two_nodes_stand_beside_the_published_two_nodes() -> None:
    """The shipped trial, whose devices are those of both nodes, as the published ones are."""
    study = load_study("olivia-gh200", None, (), find_workload)
    (trial,) = [one.trial for one in expand(study.parts) if one.part.name == "two-nodes"]
    assert (trial.settings["devices"], trial.settings["nodes"]) == (8, 2)
    spec = spec_of("olivia-gh200", "Tests 1 to 5")
    cell = cell_of(filled(spec, record_of(trial, 64596.0)), place="Test 3", metric="throughput")
    assert (cell.ratio, cell.per_device) == (1.0, False)
    assert "devices" not in {one.name for one in cell.differs}


def test_a_speedup_of_ours_is_over_the_run_of_test_1_and_an_efficiency_is_that_per_device() -> None:
    first = Trial("wideresnet", {"devices": 1, "precision": "default", "batch_size": 32, "workers": 0})
    four = {"devices": 4, "precision": "fp16", "batch_size": 256, "workers": 8, "cores": "25%"}
    node = Trial("wideresnet", four)
    spec = spec_of("olivia-gh200", "Summary")
    table = filled(spec, record_of(first, 2000.0), record_of(first, 3000.0), record_of(node, 30_000.0))
    speedup = cell_of(table, metric="speedup", value=14.2)
    assert speedup.ours is not None
    assert (speedup.ours.value, speedup.ratio) == (12.0, pytest.approx(12.0 / 14.2))  # over the median of its runs
    assert speedup.ours.half_width is None, "the interval of one run is not that of a ratio of two"
    efficiency = cell_of(table, metric="scaling_efficiency", value=0.89)
    assert efficiency.ours is not None
    assert (efficiency.ours.value, efficiency.ratio) == (3.0, None)
    assert "a quarter of its speedup per device" in str(efficiency.why)
    # A run on one device is no speedup of four, and without test 1 there is none at all.
    alone = filled(spec, record_of(first, 2000.0), record_of(Trial("wideresnet", {**four, "devices": 1}), 6000.0))
    assert cell_of(alone, metric="speedup", value=14.2).ours is None
    optimised = {"devices": 1, "precision": "bf16", "batch_size": 32, "workers": 32}
    one = filled(spec, record_of(first, 2000.0), record_of(Trial("wideresnet", optimised), 3000.0))
    shown = next(row for row in one.rows if row.ours).ours
    assert (shown["ours, speedup"].value, shown["ours, scaling efficiency"].value) == (1.5, None)
    without = cell_of(filled(spec, record_of(node, 30_000.0)), metric="speedup", value=14.2)
    assert (without.ratio, without.why) == (None, "the run that speedups are over has no rate")


def test_a_baseline_without_a_rate_gives_no_speedup() -> None:
    first = Trial("wideresnet", {"devices": 1, "precision": "default", "batch_size": 32, "workers": 0})
    optimised = Trial("wideresnet", {"devices": 1, "precision": "bf16", "batch_size": 32, "workers": 32})
    table = filled(spec_of("olivia-gh200", "Summary"), out_of_memory(first), record_of(optimised, 4000.0))
    assert cell_of(table, metric="speedup", value=1.59).why == "the run that speedups are over has no rate"
