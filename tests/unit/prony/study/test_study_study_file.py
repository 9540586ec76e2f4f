"""Study files: what they mean, and each mistake said where it stands, with nothing run."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prony.study.space import known_settings
from prony.study.study import Sourced, Study
from prony.study.study_file import PATHS, StudyFileOptions, load_study, parse_study
from prony_node.contract import RequestError
from prony_node.workloads import WORKLOADS, find_workload

STUDY = """
name: every-key
question: Does it
  pay?
source: a paper
stated: [{what: batch 8, source: Table 1}]
assumptions: [{what: fp32, source: the library's default}, {what: two, source: three}]
workloads: [gpt-tiny, resnet50]
settings:
  device: cpu
  batch_size: 1..8
  sequence: {values: [8, 16], when: workload == "gpt-tiny"}
  workers: {values: "0:4:2", when: data == host}
zip:
  - {data: [device, host], seed: [1, 2]}
derive:
  grad_accumulation: 16 // batch_size
  learning_rate: {value: 0.1 * batch_size / 256, when: workload == "resnet50"}
exclude:
  - batch_size == 8 and workload == "resnet50"
parts:
  - {name: first}
  - name: second
    workloads: gpt-tiny
    settings: {batch_size: 32, workers: }
    repeats: 2
    stop: {max_time: 5s}
order: random
seed: 7
budget: {max_time: 2h, max_energy: 1kWh}
site: local
sizes:
  quick: {settings: {batch_size: 2}, repeats: 1}
cells:
  small: {workload: resnet50, match: {batch_size: 1}}
  large: {workload: resnet50, only: {batch_size: 4}}
claims:
  - {says: a larger batch pays, place: page 1, value: large / small, above: 1, published: 1.5}
tables:
  - {title: a table, figures: caraml-sc24, where: {workload: resnet50}, metrics: [throughput], rows: [global_batch],
     columns: [system], match: {devices: devices, global_batch: global_batch}, workloads: [resnet50],
     samples: {imagenet: 1281167}, epochs: 1, unit_tokens: 1}
plots:
  - {title: a plot, kind: lines, figures: caraml-sc24, where: {workload: resnet50, devices: 1}, x: global_batch,
     metrics: [throughput, energy], series: [system], match: {devices: devices, global_batch: global_batch}}
"""


def read(text: str, folder: Path | None = None, size: str | None = None, words: tuple[str, ...] = ()) -> Study:
    return parse_study(text, "s.yaml", StudyFileOptions(folder, size, words), find_workload)


def trials(study: Study) -> list[str]:
    return [str(one.trial) for one in study.planned()]


def test_a_study_with_every_key() -> None:
    study = read(STUDY)
    assert (study.name, study.question) == ("every-key", "Does it pay?")
    assert study.stated == (Sourced("batch 8", "Table 1"),)
    assert study.assumptions == (Sourced("fp32", "the library's default"), Sourced("two", "three"))
    assert (study.seed, study.budget.max_time_s, study.budget.max_energy_j) == (7, 7200.0, 3.6e6)
    found = trials(study)
    assert found[0] == "gpt-tiny data=device seed=1 device=cpu batch_size=1 sequence=8 grad_accumulation=16"
    assert found[-1] == "gpt-tiny data=host seed=2 device=cpu batch_size=32 sequence=16 grad_accumulation=0"
    # gpt-tiny: 4 batches x 2 lengths x (device, or host with 3 numbers of workers); resnet50: 3 batches; second part
    assert len(found) == 4 * 2 * 4 + 3 * 4 + 2 * 2
    assert sum("resnet50" in text and "learning_rate=0.00" in text for text in found) == 3 * 4
    refused = [one for one in study.planned() if one.refused]
    assert all("grad_accumulation=0 is not possible" in str(one.refused) for one in refused)
    assert len(refused) == 4
    assert [part.stop.max_time_s for part in study.parts] == [120.0, 5.0]


DATA_SETS = """
workloads: resnet50
parts:
  - {name: classify-cifar100, dataset: cifar100, settings: {batch_size: 8}}
  - {name: classify-food101, dataset: food101, settings: {batch_size: 8}}
  - {name: infer, settings: {mode: infer}}
"""


def test_each_data_set_has_its_own_path() -> None:
    def paths(*words: str) -> dict[str, str]:
        return {one.part.name: str(one.trial.settings.get("data")) for one in read(DATA_SETS, words=words).planned()}

    both = ("classify.data.cifar100=/c", "classify.data.food101=/f")
    assert paths(*both) == {"classify-cifar100": "/c", "classify-food101": "/f", "infer": "None"}
    assert paths("data.food101=/f", "data=/d")["classify-food101"] == "/f"  # what says more counts
    assert paths("data.food101=/f", "data=/d")["infer"] == "/d"
    assert paths("classify-food101.data=/f")["classify-food101"] == "/f"
    with pytest.raises(RequestError, match="unknown data set 'cifar10'; did you mean 'cifar100'"):
        paths("classify.data.cifar10=/c")
    with pytest.raises(RequestError, match="unknown part 'detect'"):
        paths("detect.data.cifar100=/c")
    with pytest.raises(RequestError, match="part 'infer' does not stand for the data set cifar100"):
        paths("infer.data.cifar100=/c")
    with pytest.raises(RequestError, match=r"line 4, column .*: a data set has up to 60 letters"):
        read(DATA_SETS.replace("dataset: cifar100", "dataset: a.b"))


def test_a_trial_of_two_data_sets_is_one_that_stands_for_both() -> None:
    """Made on the device its samples are of neither; with a path it is another trial."""
    shared = [one for one in read(DATA_SETS).planned() if one.trial.settings.get("mode") is None]
    assert [one.datasets for one in shared] == [{"cifar100", "food101"}]
    apart = read(DATA_SETS, words=("data.food101=/f",)).planned()
    assert [one.datasets for one in apart] == [{"cifar100"}, {"food101"}, {""}]


def test_sizes_and_words_change_settings() -> None:
    quick = read(STUDY, size="quick")
    assert {one.trial.settings["batch_size"] for one in quick.planned()} == {2}
    assert [part.repeats for part in quick.parts] == [1, 1]
    changed = read(STUDY, words=("batch_size=4,16", "second.sequence=32", "second.batch_size=64"))
    by_part = {part.name: [o for o in changed.planned() if o.part.name == part.name] for part in changed.parts}
    assert {one.trial.settings["batch_size"] for one in by_part["first"]} == {4, 16}
    assert {one.trial.settings["sequence"] for one in by_part["second"]} == {32}
    without = read(STUDY, words=("second.device=", "second.grad_accumulation="))
    taken = [one.trial.settings for one in without.planned() if one.part.name == "second"]
    assert taken
    assert not any({"device", "grad_accumulation"} & set(settings) for settings in taken)
    with pytest.raises(RequestError, match="unknown part 'secnd'; did you mean 'second'"):
        read(STUDY, words=("secnd.batch_size=4",))
    with pytest.raises(RequestError, match="unknown size 'quikc'; did you mean 'quick'"):
        read(STUDY, size="quikc")
    with pytest.raises(RequestError, match="unknown setting 'batchsize'; did you mean 'batch_size'"):
        read(STUDY, words=("batchsize=4",))
    with pytest.raises(RequestError, match="seed changes together with others"):
        read(STUDY, words=("seed=4",))


PARTS = """
workloads: gpt-tiny
parts:
  - {name: small, settings: {sequence: 8, batch_size: [1, 2]}}
  - {name: images, workloads: resnet50, settings: {batch_size: 4}}
"""


def of_part(*parts: str, words: tuple[str, ...] = (), text: str = PARTS) -> Study:
    return parse_study(text, "s.yaml", StudyFileOptions(None, words=words, parts=parts), find_workload)


def test_one_part_alone_has_its_own_trials_and_takes_words_that_other_parts_would_refuse() -> None:
    study = of_part("small", words=("sequence=16",))
    assert trials(study) == ["gpt-tiny sequence=16 batch_size=1", "gpt-tiny sequence=16 batch_size=2"]
    assert (study.part_names, of_part().part_names) == (("small",), ())
    assert len(trials(of_part("images", "small"))) == 3


@pytest.mark.parametrize(
    ("parts", "words", "text", "said"),
    [
        (("smal",), (), PARTS, "unknown part 'smal'; did you mean 'small'"),
        (("small",), ("images.batch_size=8",), PARTS, "images.batch_size is for a part that was not asked for"),
        (("small",), (), "workloads: gpt-tiny", "this study has no parts; leave the part out"),
    ],
)
def test_a_part_that_cannot_be_chosen_is_refused(
    parts: tuple[str, ...], words: tuple[str, ...], text: str, said: str
) -> None:
    with pytest.raises(RequestError, match=re.escape(said)):
        of_part(*parts, words=words, text=text)


def test_a_zipped_group_with_a_condition_may_speak_of_settings_and_of_groups_above() -> None:
    text = """
workloads: gpt-tiny
settings: {devices: [1, 2]}
zip:
  - {when: devices > 1, seed: [1, 2], bucket_mb: [3, 4]}
  - {when: seed == 2, batch_size: 8}
derive: {grad_accumulation: {value: seed, when: devices > 1}}
"""
    assert trials(read(text)) == [
        "gpt-tiny devices=1",
        "gpt-tiny devices=2 seed=1 bucket_mb=3 grad_accumulation=1",
        "gpt-tiny devices=2 seed=2 bucket_mb=4 batch_size=8 grad_accumulation=2",
    ]
    with pytest.raises(RequestError, match="'seed == 1' speaks of seed, which is given further down"):
        read(text.replace("{devices: [1, 2]}", "{devices: 2, workers: {values: 1, when: seed == 1}}"))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("derive: {seed: 1 // (batch_size - 1)}", "s.yaml, line 3, column 16: .*divides by zero"),
        ("exclude: batch_size + 1", "s.yaml, line 3, column 10: .*not something that holds"),
    ],
)
def test_an_expression_that_fails_for_some_trial_says_where_it_stands(line: str, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        read(f"workloads: gpt-tiny\nsettings: {{batch_size: [2, 1]}}\n{line}").planned()


def test_a_trial_of_two_parts_is_run_as_often_as_either_asks() -> None:
    parts = "{name: a, settings: {seed: [1, 2]}}, {name: b, settings: {seed: [2, 3]}, repeats: 2}"
    study = read(f"workloads: gpt-tiny\nparts: [{parts}]")
    turns = study.turns(study.planned())
    assert sorted(turn.planned.trial.settings["seed"] for turn in turns) == [1, 2, 2, 3, 3]
    assert {turn.planned.part.name for turn in turns if turn.planned.trial.settings["seed"] == 2} == {"a"}


def test_a_condition_may_name_a_workload_that_this_size_leaves_out() -> None:
    text = """
workloads: [gpt-tiny, resnet50]
settings: {image_size: {values: 32, when: workload == resnet50}, batch_size: 2}
sizes: {quick: {workloads: wideresnet}}
"""
    assert trials(read(text)) == ["gpt-tiny batch_size=2", "resnet50 image_size=32 batch_size=2"]
    assert trials(read(text, size="quick")) == ["wideresnet batch_size=2"]


def test_a_word_for_every_part_is_refused_by_the_part_without_such_a_setting() -> None:
    text = "parts: [{name: a, workloads: gpt-tiny}, {name: b, workloads: resnet50}]"
    for word in ("sequence=16", "b.sequence=16"):
        with pytest.raises(RequestError, match=r"part 'b' have no setting sequence; write a\.sequence="):
            read(text, words=(word,))
    assert trials(read(text, words=("a.sequence=16",))) == ["gpt-tiny sequence=16", "resnet50"]


BAD = [
    ("workload: resnet50", "line 1, column 1: 'workload' has no meaning in a study; did you mean 'workloads'"),
    ("workloads: resnet51", "line 1, column 12: unknown workload 'resnet51'; did you mean 'resnet50'"),
    ("settings: {batch_size: 1}", "line 1, column 1: there is no workload"),
    ("workloads: resnet50\nsettings:\n  batchsize: 3", "line 3, column 3: unknown setting 'batchsize'; did you mean"),
    ("workloads: resnet50\nsettings: {batch_size: [1, x]}", "line 2, column 28: batch_size=x is not possible"),
    ("workloads: resnet50\nsettings: {batch_size: 1}\nexclude: batchsize > 1", "line 3, column 10: .*batchsize"),
    ("workloads: resnet50\nsettings: {batch_size: 9..3}", "line 2, column 24: .*is empty"),
    ("workloads: resnet50\nsettings: {workers: 0..8}", "never ends"),
    ("workloads: resnet50\nsettings: {seed: '1:9:0'}", "a step is at least 1"),
    ("workloads: resnet50\nsettings: {seed: '1:99999999'}", "at most 10,000"),
    ("workloads: resnet50\nzip: [{seed: [1, 2], batch_size: [1]}]", "changes together, but seed has 2"),
    ("workloads: [resnet50, gpt-tiny]\nsettings: {sequence: 8}", "resnet50 has no setting sequence; give it a condit"),
    ("workloads: resnet50\nsettings: {workers: {values: 1, when: data == host}, data: host}", "given further down"),
    ("workloads: resnet50\nrepeats: 0", "line 2, column 10: repeats is a whole number"),
    ("workloads: resnet50\norder: sorted", "unknown order 'sorted'"),
    ("workloads: resnet50\nbudget: {max_time: soon}", "line 2, column 9: max_time: soon is not possible"),
    ("workloads: resnet50\nbudget: {max_energy: 3}", "give an energy such as"),
    ("workloads: resnet50\nname: ../x", "a name has up to 60 letters"),
    ("workloads: [resnet50", "line 1, column 21: this is not YAML"),
    ("workloads: resnet50\n---\nworkloads: resnet50", "2 documents"),
    ("", "is empty; a study is one document"),
    ("- a", "a study is names with values"),
    # nothing of a study is run
    ("workloads: !!python/object/apply:os.system ['touch x']", "the tag 'python/object/apply:os.system' is not read"),
    ("workloads: $(touch x)", "unknown workload"),
    ("workloads: resnet50\ncommand: touch x", "'command' has no meaning"),
    ("workloads: resnet50\nsettings: {data: '/dev/null; touch x'}", "lies outside"),
    ("workloads: resnet50\nsettings: {data: /etc}", "line 2, column 18: '/etc' lies outside the folder of the study"),
    ("workloads: resnet50\nsettings: {stage: ../elsewhere}", "lies outside"),
    ("workloads: resnet50\nsettings: {weights: ~/.ssh/id}", "lies outside"),
    ("workloads: ../model.py", "lies outside"),
    ("workloads: /bin/sh", "lies outside"),
    ("workloads: ~/model", "lies outside"),
    ("workloads: hf//etc/config.json", "lies outside"),
    ("workloads: hf/..", "lies outside"),
    ("workloads: resnet50\nsite: ./theirs.yaml", "line 2, column 7: a study names a site, local or one of yours"),
    ("workloads: resnet50\nsite: theirs.yml", "its file you name yourself, --site FILE"),
    ("workloads: resnet50\nsite: ../../etc/passwd", "a study names a site"),
    ("workloads: resnet50\nsite: /etc/passwd", "a study names a site"),
    ("workloads: resnet50\nstated: [fp32]", "line 2, column 10: an entry of stated is names with values"),
    ("workloads: resnet50\nassumptions: [{what: fp32}]", "line 2, column 15: an entry of assumptions has both"),
    ("workloads: resnet50\nstated: [{what: a, sauce: b}]", "'sauce' has no meaning .* did you mean 'source'"),
    ('workloads: resnet50\nquestion: "\\e[2J"', "holds a control character"),
    ("workloads: resnet50\nsettings: {<<: {seed: 1}}", "a merge key"),
]


@pytest.mark.parametrize(("text", "why"), BAD)
def test_a_mistake_is_said_where_it_stands(
    text: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RequestError, match=why):
        read(text, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_bombs_are_refused() -> None:
    levels = "".join(f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 10)}]\n" for n in range(1, 9))
    with pytest.raises(RequestError, match="more than 20,000 values"):
        read(f"l0: &l0 [x]\n{levels}workloads: resnet50")
    with pytest.raises(RequestError, match="nested"):
        read("workloads: " + "[" * 5000 + "]" * 5000)
    with pytest.raises(RequestError, match="nested"):
        read("workloads: &a [*a]")
    with pytest.raises(RequestError, match="256 KiB"):
        read("# " + "x" * 300_000)
    with pytest.raises(RequestError, match="99,980,001 combinations"):
        read("workloads: resnet50\nsettings: {seed: '1:9999', batch_size: '1:9999'}").planned()


def test_paths_below_the_study_are_its_own(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("workloads: resnet50\nsettings: {data: [./images, host]}\n")
    study = load_study(str(file), None, (), find_workload)
    assert study.name == "mine"
    assert [one.trial.settings["data"] for one in study.planned()] == [str(tmp_path.resolve() / "images"), "host"]
    elsewhere = load_study(str(file), None, ("data=/etc",), find_workload)
    assert [one.trial.settings["data"] for one in elsewhere.planned()] == ["/etc"]


def test_every_setting_that_can_be_a_path_is_held_below_the_study() -> None:
    every = {setting for workload in WORKLOADS.values() for setting in known_settings(workload).values()}
    paths = {one.name for one in every if one.kind == "text" and re.fullmatch(one.pattern, "/etc/passwd")}
    assert paths == set(PATHS)


def test_what_is_no_study(tmp_path: Path) -> None:
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    for target, why in (
        ("nowhere.yaml", "No such file"),
        (f"{tmp_path}/binary.yaml", "UTF-8"),
        (f"{tmp_path}/", "no regular file"),
    ):
        with pytest.raises(RequestError, match=why):
            load_study(target, None, (), find_workload)
    with pytest.raises(RequestError, match="unknown study 'nonesuch'"):
        load_study("nonesuch", None, (), find_workload)


LINES = st.sampled_from(STUDY.splitlines())
SPLICED = st.lists(st.one_of(LINES, LINES, LINES, st.text(max_size=12)), max_size=25).map("\n".join)
CUT = st.tuples(st.integers(0, len(STUDY)), st.integers(0, 30), st.text(max_size=6)).map(
    lambda cut: STUDY[: cut[0]] + cut[2] + STUDY[cut[0] + cut[1] :]
)


@settings(max_examples=150)
@given(st.one_of(CUT, SPLICED, st.text(max_size=100)))
def test_any_file_is_a_study_or_a_sentence(text: str) -> None:
    with contextlib.suppress(RequestError):
        assert all(one.trial.hash for one in read(text).planned())
