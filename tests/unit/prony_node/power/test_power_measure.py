"""The energy of a block of someone's own script: the figures, one sampler, and nothing that reaches the block."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from prony_node.contract import files
from prony_node.contract.errors import RequestError
from prony_node.power import BlockEnergy, measure, recording
from prony_node.power.block import _new_folder
from prony_node.power.recording import Writer
from prony_node.power.sensor import Reading, Sensor

PART = "GPU-5f1c0a3e-0000-4000-8000-000000000001"
POWER_W = 150.0


@pytest.fixture(autouse=True)
def own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A recording of a made-up GPU at 150 W instead of this machine, and a temporary directory of the test's own."""
    recording = tmp_path / "recording"
    recording.mkdir()
    counter = Sensor("made.energy", "made", "counter", "gpu", PART, "Made GPU, counter", period_s=0.1)
    writer = Writer(recording, [counter], {"reasons": {}, "busy_at_start": {PART: ""}})
    for number in range(1200):
        at_s = 0.05 * number
        writer.add(counter, [Reading(at_s, at_s + 1e-4, 0.1 * POWER_W * (number // 2))])
    writer.close()
    place = tmp_path / "tmp"
    place.mkdir()
    monkeypatch.setenv("PRONY_POWER_REPLAY", str(recording))
    for name in ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "LOCAL_RANK", "SLURM_LOCALID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    yield place
    end_s = time.monotonic() + 60.0
    while samplers(place) and time.monotonic() < end_s:
        time.sleep(0.05)
    assert samplers(place) == [], "a sampler outlived its last user"


def samplers(place: Path) -> list[str]:
    """The folders of samplers: each removes its own when it ends."""
    return [str(path) for path in place.glob("prony-power-*/*-*")]


def test_blocks_inside_each_other_share_a_sampler_and_have_figures_after_the_outer_one(
    own_place: Path, tmp_path: Path
) -> None:
    @measure
    def work(seconds: float) -> int:
        time.sleep(seconds)
        return 7

    with measure("outer", out=tmp_path / "kept" / "block") as outer:
        assert work(5.0) == 7
        assert len(samplers(own_place)) == 1
        with measure("short") as short:
            pass
        began_s = time.monotonic()
    assert time.monotonic() - began_s > 0.3, "the last readings are waited for, and after the block"
    inner = work.measured  # type: ignore[attr-defined]
    for measured in (outer, inner):
        assert measured.power_w == pytest.approx(POWER_W, rel=0.05)
        assert measured.energy_j == pytest.approx(POWER_W * measured.node.seconds, rel=0.05)
        assert measured.reason == ""
    assert inner.name.endswith("work")
    assert outer.start_s <= inner.start_s <= inner.end_s <= outer.end_s < began_s + 0.3
    assert short.energy_j is None
    assert "under 2 s" in short.reason
    assert "Made GPU" in outer.table()
    assert outer.kept == tmp_path / "kept" / "block"
    document = json.loads((outer.kept / "energy.json").read_text())
    assert document["schema"] == "prony.energy/1"
    assert document["name"] == "outer"
    assert document["node"]["energy_j"] == outer.energy_j
    assert {path.name for path in outer.kept.iterdir()} == {"energy.json", files.POWER, files.POWER_SAMPLES}


def test_what_a_block_raises_goes_through_and_it_has_still_ended(own_place: Path) -> None:
    error = KeyError("mine")
    with pytest.raises(KeyError) as raised, measure() as measured:
        raise error
    assert raised.value is error
    assert "under 2 s" in measured.reason

    @measure("named")
    def fail() -> None:
        raise error

    with pytest.raises(KeyError) as raised:
        fail()
    assert raised.value is error
    assert isinstance(fail.measured, BlockEnergy)  # type: ignore[attr-defined]


def test_there_are_no_figures_before_the_end(own_place: Path) -> None:
    with measure() as measured, pytest.raises(RuntimeError, match="has not ended"):
        _ = measured.energy_j


def test_a_folder_that_others_may_look_into_costs_the_figure_and_not_the_block(own_place: Path) -> None:
    (own_place / f"prony-power-{os.getuid()}").mkdir(mode=0o755)
    done = False
    with measure() as measured:
        done = True
    assert done
    assert measured.energy_j is None
    assert "not a folder of this user alone" in measured.reason
    assert measured.json()["node"]["reason"] == measured.reason


def test_a_link_in_place_of_the_folder_is_refused(own_place: Path, tmp_path: Path) -> None:
    (own_place / f"prony-power-{os.getuid()}").symlink_to(tmp_path)
    with pytest.raises(recording.NotShared):
        recording.user_folder()


def test_what_cannot_be_kept_is_a_note(own_place: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with measure(out=tmp_path / "file" / "below") as measured:
        pass
    assert measured.kept is None
    assert "not kept" in measured.notes[0]


def test_one_process_a_node_writes(own_place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    with measure(out=tmp_path / "kept") as measured:
        pass
    assert measured.kept is None
    assert not (tmp_path / "kept").exists()


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    assert [_new_folder(tmp_path / "x").name for _ in range(3)] == ["x", "x-2", "x-3"]


def test_processes_of_one_job_agree_on_it_and_others_do_not() -> None:
    rank = {"TORCHELASTIC_RUN_ID": "a", "MASTER_ADDR": "n0", "MASTER_PORT": "1"}
    assert recording.job_of({**rank, "RANK": "0"}) == recording.job_of({**rank, "RANK": "1"})
    assert recording.job_of(rank) != recording.job_of({**rank, "MASTER_PORT": "2"})
    assert recording.job_of({"SLURM_JOB_ID": "5"}) == "slurm 5"
    assert recording.job_of({}).startswith(f"parent {os.getppid()} ")


def test_what_a_killed_sampler_left_is_swept_and_not_joined(own_place: Path) -> None:
    joined = recording.join(None, [])
    assert joined.ready()
    assert joined.process is not None
    os.kill(joined.process.pid, 9)
    while not joined.process.ended():
        time.sleep(0.02)
    again = recording.join(None, [])
    assert again.folder != joined.folder
    assert not joined.folder.exists()
    joined.leave()
    again.leave()


def test_a_typo_is_told_before_the_block_begins() -> None:
    with pytest.raises(RequestError, match="nvidia"):
        measure(readers=["nvida"])
    with pytest.raises(RequestError, match="interval_s"):
        measure(interval_s=500)


def test_what_does_not_run_when_called_is_refused() -> None:
    async def later() -> None: ...

    with pytest.raises(TypeError, match="inside it"):
        measure(later)


def test_a_forked_child_has_a_count_of_its_own(own_place: Path) -> None:
    with measure("parent"):
        child = os.fork()
        if child == 0:
            try:
                with measure("child") as measured:
                    pass
                os._exit(0 if "under 2 s" in measured.reason else 1)
            finally:
                os._exit(2)
        assert os.waitpid(child, 0)[1] == 0
        assert len(samplers(own_place)) >= 1, "the child's leaving is not the parent's"
