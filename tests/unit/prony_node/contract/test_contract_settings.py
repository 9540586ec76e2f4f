"""A setting takes its own words and refuses every other with a sentence that names the nearest right one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prony_node.contract import SETTINGS, RequestError, Setting
from prony_node.contract.errors import nearest
from prony_node.contract.settings import Value, parse_settings

WORDS: dict[str, list[tuple[object, Value]]] = {
    "batch_size": [("1", 1), ("auto", "auto"), (256, 256)],
    "workers": [("0", 0), (3, 3)],
    "seed": [("0", 0), ("123456", 123456)],
    "cores": [("2", "2"), ("0-3,8", "0-3,8"), ("25%", "25%")],
    "device": [("auto", "auto"), ("cpu", "cpu"), ("cuda", "cuda"), ("cuda:1", "cuda:1"), ("xpu:0", "xpu:0"),
               ("mps", "mps")],
    "data": [("device", "device"), ("host", "host"), ("generated", "generated"), ("./set", "./set"), ("~/b", "~/b")],
    "stage": [("/local/disk", "/local/disk")],
    "until": [("accuracy>=0.93", "accuracy>=0.93"), ("loss<=2", "loss<=2")],
    "learning_rate": [("0.1", "0.1"), ("3e-4", "3e-4")],
    "kernels": [
        ("default", "default"), ("library", "library"), ("folded-stem", "folded-stem"),
        ("folded-stem, compiled-norms", "compiled-norms,folded-stem"),
    ],
}  # fmt: skip
WRONG = {
    "batch_size": "atuo", "precision": "bf-16", "compile": "defalt", "graphs": "onn", "mode": "training",
    "data": "hosts", "optimizer": "adamv", "memory_format": "channel_last", "device": "cdua", "preset": "fsat",
    "recompute": "selectiv",
}  # fmt: skip


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=lambda setting: setting.name)
def test_a_setting_takes_every_value_it_offers(setting: Setting) -> None:
    if setting.kind == "flag":
        taken: list[tuple[object, Value]] = [("on", True), ("off", False), (True, True), (False, False)]
        taken += [(word, word) for word in setting.choices]
    elif setting.kind == "choice":
        taken = [(word, word) for word in setting.choices]
    else:
        taken = WORDS.get(setting.name, [("7", 7), (7, 7)])
    for text, value in taken:
        parsed = setting.parse(text)
        assert parsed == value
        assert type(parsed) is type(value)
        assert setting.parse(setting.show(parsed)) == value  # what is shown can be typed again


@pytest.mark.parametrize(("name", "word"), WRONG.items())
def test_a_misspelt_value_is_answered_with_the_nearest(name: str, word: str) -> None:
    setting = SETTINGS[name]
    with pytest.raises(RequestError, match=rf"^{name}={word} is not possible: .*; did you mean {name}=") as caught:
        setting.parse(word)
    assert str(caught.value).endswith(f"did you mean {name}={nearest(word, setting.words())}?")
    assert setting.values() in str(caught.value)


@pytest.mark.parametrize(
    ("name", "word"),
    [("batch_size", "0"), ("batch_size", "-4"), ("batch_size", "1.5"), ("batch_size", True), ("batch_size", 10**30),
     ("batch_size", "1" * 13), ("workers", "-1"), ("steps", ""), ("seed", None), ("cores", "0-"), ("cores", 2),
     ("cores", "1;2"), ("device", "cuda:"), ("device", "cpu:0"), ("device", "cuda\n"), ("graphs", 1),
     ("graphs", "ON "), ("mode", "train "), ("mode", ["train"])],
)  # fmt: skip
def test_near_misses_are_refused(name: str, word: object) -> None:
    with pytest.raises(RequestError, match=rf"^{name}="):
        SETTINGS[name].parse(word)


def test_a_misspelt_setting_is_answered_with_the_nearest() -> None:
    with pytest.raises(RequestError, match=r"unknown setting 'batchsize'; did you mean 'batch_size'\?"):
        parse_settings({"batchsize": "4"})
    with pytest.raises(RequestError, match=r"did you mean 'precision'\?"):
        parse_settings({"PRECISION": "fp32"})
    own = Setting("sequence", "count", "", least=8)
    assert parse_settings({"sequence": "16"}, (own,)) == {"sequence": 16}
    with pytest.raises(RequestError, match="unknown setting 'sequence'"):
        parse_settings({"sequence": "16"})
    with pytest.raises(
        RequestError, match="known: augment, batch_norm, batch_size, "
    ):  # nothing is near: then all are named
        parse_settings({"§": "16"})


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=4,
)


@given(name=st.sampled_from(sorted(SETTINGS)), value=ANYTHING | st.just(10**5000) | st.just(-(10**5000)))
def test_parsing_raises_nothing_but_a_request_error(name: str, value: object) -> None:
    try:
        parsed = SETTINGS[name].parse(value)
    except RequestError as error:
        sentence = str(error)
    else:
        sentence = ""
        assert isinstance(parsed, str | int)
    assert len(sentence) < 400  # whatever was typed


@given(st.dictionaries(st.text(max_size=12) | st.sampled_from(sorted(SETTINGS)), ANYTHING, max_size=4))
def test_a_whole_request_raises_nothing_but_a_request_error(given_settings: dict[str, object]) -> None:
    try:
        parsed = parse_settings(given_settings)
    except RequestError:
        return
    assert set(parsed) == set(given_settings)


@given(word=st.text(max_size=20), known=st.lists(st.text(min_size=1, max_size=10), max_size=5))
def test_the_nearest_word_is_a_known_one(word: str, known: list[str]) -> None:
    guess = nearest(word, known)
    assert guess is None or guess in known
