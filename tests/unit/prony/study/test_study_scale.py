"""A series that changes more than the devices, or that cannot divide its batch, must not start."""

from __future__ import annotations

import pytest

from prony.study.study import COUNTED, STRONG, WEAK, ScalingTrials, make_series, parse_counts
from prony_node.contract import RequestError
from prony_node.contract.machine import Machine
from prony_node.contract.trial import Stop
from prony_node.workloads import WORKLOADS, find_workload


def made(words: str, *kinds: str, diagnose: bool = False, nodes: tuple[int, ...] = ()) -> ScalingTrials:
    return make_series("gpt-tiny", words.split(), kinds or (WEAK,), Machine, nodes, diagnose)


def shown(series: ScalingTrials, *left_out: str) -> list[str]:
    """The trials without their workload, and without what every one of them has."""
    return [" ".join(word for word in str(trial).split()[1:] if word not in left_out) for trial in series.trials]


def test_weak_scaling_keeps_the_batch_of_each_device() -> None:
    series = made("devices=1,2,4 batch_size=8 seed=3")
    assert shown(series, "seed=3", "graphs=off") == [f"batch_size=8 devices={n}" for n in (1, 2, 4)]


def test_strong_scaling_keeps_the_batch_of_all() -> None:
    series = made("devices=1,2,4 global_batch=8", STRONG)
    assert shown(series, "graphs=off") == [f"global_batch=8 devices={n}" for n in (1, 2, 4)]


def test_the_batch_of_one_device_is_that_of_all_in_strong_scaling() -> None:
    series = made("devices=1,2 batch_size=8 grad_accumulation=2", STRONG)
    one, two = (trial.settings for trial in series.trials)
    assert (one["batch_size"], two["global_batch"]) == (8, 16)
    assert "batch_size" not in two


def test_without_a_batch_strong_scaling_keeps_what_one_device_takes_by_default() -> None:
    series = made("devices=1,2,4 device=cpu", STRONG)
    given = made("devices=1,2,4 device=cpu batch_size=8", STRONG)
    assert [trial.hash for trial in series.trials] == [trial.hash for trial in given.trials]
    assert "keeps 8 on all devices together, which one device (cpu) takes by default" in series.batch_taken
    assert given.batch_taken == ""
    both = made("devices=1,2,4 device=cpu", WEAK, STRONG)
    assert len(both.trials) == 5, "one device is run once"
    pieces = made("devices=1,2 device=cpu grad_accumulation=2", STRONG)
    assert pieces.trials[1].settings["global_batch"] == 16


def test_the_default_batch_is_that_of_the_device_where_the_series_is_run() -> None:
    def small(device: str) -> Machine:
        assert device == "cuda:1"
        return Machine("cuda", 16.0)

    words = ["devices=1,2", "device=cuda:1", "parallel=ddp"]
    series = make_series("resnet50", words, (STRONG,), small)
    assert series.trials[1].settings["global_batch"] == 64
    assert "(cuda, 16 GiB)" in series.batch_taken
    assert (
        "(cuda, of unknown memory)" in make_series("resnet50", words, (STRONG,), lambda _: Machine("cuda")).batch_taken
    )


def test_both_run_one_device_once() -> None:
    series = made("devices=1,2,4 batch_size=8", WEAK, STRONG)
    assert len(series.trials) == 5
    assert series.hashes(WEAK) & series.hashes(STRONG) == {series.trials[0].hash}


def test_each_count_has_its_diagnostic_beside_it() -> None:
    series = made("devices=1,2,4", diagnose=True)
    assert shown(series, "graphs=off") == [
        "devices=1",
        "devices=2",
        "devices=2 sync=off",
        "devices=4",
        "devices=4 sync=off",
    ]
    assert series.no_free == ""


@pytest.mark.parametrize(
    "words", ["devices=1,2 mode=infer", "devices=1,2 parallel=fsdp", "devices=1,2 parallel=independent"]
)
def test_where_no_gradients_can_be_left_out_the_reason_is_kept(words: str) -> None:
    series = made(words, diagnose=True)
    assert len(series.trials) == 2
    assert "sync" in series.no_free


def test_what_several_devices_imply_holds_on_one_too() -> None:
    """One GPU would capture its step as a graph, and several cannot: then not only the devices would change."""
    one, two = made("devices=1,2 parallel=fsdp optimizer=sgd").trials
    assert {name: one.settings[name] for name in ("graphs", "compile", "fused")} == {
        "graphs": False, "compile": "off", "fused": False,
    }  # fmt: skip
    assert {name: value for name, value in two.settings.items() if name not in one.settings} == {"parallel": "fsdp"}
    assert "graphs" not in made("devices=1,2 mode=infer").trials[0].settings
    assert "graphs" not in made("devices=1,2 device=cpu").trials[0].settings  # it has none on a CPU anyway


@pytest.mark.parametrize("name", [one.name for one in WORKLOADS.values() if "train" in one.modes])
@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_every_workload_has_the_same_form_on_one_device_as_on_two(name: str, kind: str) -> None:
    """Its own settings too: a detector that pools otherwise on one device would be compared with another program."""
    machine = Machine(kind, 141.0, 16)
    series = make_series(name, ["devices=1,2", "batch_size=2"], (WEAK,), lambda device: machine, diagnose=False)
    one, two = (find_workload(name).effective(trial.settings, machine) for trial in series.trials)
    counted = {*COUNTED, "global_batch", "cores", "workers"}
    assert {key for key in {*one, *two} if one.get(key) != two.get(key)} <= counted


def test_cores_are_those_of_each_device() -> None:
    assert [trial.settings["cores"] for trial in made("devices=1,4 cores=2").trials] == ["2", "8"]
    spread = made("devices=1,4 cores=2", nodes=(2,)).trials
    assert [trial.settings["cores"] for trial in spread] == ["2", "8", "8"], "a node has four devices of the eight"
    assert [trial.settings["cores"] for trial in made("devices=1,4 cores=0-3").trials] == ["0-3", "0-3"]


def test_a_series_is_carried_out_as_a_study_of_the_same_trials_there_and_back() -> None:
    words = "devices=1,2 batch_size=8 cores=2 sequence=16 bucket_mb=4 static_graph=on"
    series = made(words, WEAK, STRONG, diagnose=True, nodes=(2,))
    study = series.study(Stop(tolerance=0.05), 2, "mine")
    turns = study.turns(study.planned())
    once = [trial.hash for trial in series.trials]
    assert [turn.planned.trial.hash for turn in turns] == [*once, *reversed(once)]
    assert {turn.planned.part.stop.tolerance for turn in turns} == {0.05}
    assert (study.site, {turn.planned.part.name for turn in turns}) == ("mine", {WEAK, STRONG})
    with pytest.raises(RequestError, match="repeats 0 is not possible"):
        series.study(Stop(), 0, "mine")


def test_nodes_go_on_from_the_most_devices() -> None:
    series = made("devices=1,2", nodes=(1, 2, 4))
    assert shown(series, "graphs=off") == ["devices=1", "devices=2", "devices=4 nodes=2", "devices=8 nodes=4"]


@pytest.mark.parametrize(
    ("words", "kinds", "said"),
    [
        ("batch_size=8", [WEAK], "needs the counts of devices, such as devices=1,2,4"),
        ("devices=2,4", [WEAK], "devices=2,4 has no 1: .* devices=1,2,4 would do"),
        ("devices=1", [WEAK], "one device alone is no series"),
        ("devices=1,two", [WEAK], "give whole numbers"),
        ("devices=1,2 nodes=2", [WEAK], "nodes is varied by the series itself"),
        ("devices=1,2 sync=off", [WEAK], "sync is varied by the series itself"),
        ("devices=1,2 batch_size=auto", [WEAK], "may find another batch at each count"),
        ("devices=1,2 batch_size=8,16", [WEAK], "batch_size=8,16 is not possible"),
        ("devices=1,2 global_batch=8", [WEAK], "weak scaling keeps the batch of each device"),
        ("devices=1,3 device=cpu", [STRONG], "a global batch of 8 cannot be divided among 3 devices"),
        ("devices=1,2,3 global_batch=8", [STRONG], "8 cannot be divided among 3 devices.* that 6 divides"),
        ("devices=1,4 batch_size=6 grad_accumulation=2", [STRONG], "12 cannot be divided among 4 devices x 2 micro"),
        ("devices=1,2 batch_sise=8", [WEAK], "did you mean 'batch_size'"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_with_a_sentence(words: str, kinds: list[str], said: str) -> None:
    with pytest.raises(RequestError, match=said):
        made(words, *kinds)


def test_counts_are_in_order_and_each_once() -> None:
    assert parse_counts("4, 1,2,2", "--nodes") == [1, 2, 4]
    with pytest.raises(RequestError, match="--nodes 0,2 is not possible"):
        parse_counts("0,2", "--nodes")
