"""Site files: what is right is read, what is wrong is refused by line and with the nearest right thing."""

from __future__ import annotations

from pathlib import Path

import pytest
from jobs_for_tests import SLURM, make_site

from prony.sites.site import (
    KINDS,
    LOCAL,
    choose_partition,
    example_sites,
    find_site,
    load_site,
    parse_site,
    sites_folder,
    user_sites,
)
from prony_node.contract import RequestError


def test_a_kind_and_a_partition_are_enough() -> None:
    site = make_site("kind: slurm\npartition: gpu\n")
    assert (site.kind, site.partition, site.partitions["gpu"].accelerators) == ("slurm", "gpu", None)
    assert (site.limits.jobs, site.signal_before_s, site.retry_node_failure) == (20, 60, 0)


def test_everything_a_site_can_say_is_read() -> None:
    site = make_site(
        SLURM + "limits: {jobs: 3, nodes: 2, time: 2h}\nsignal_before: 2m\nretry_node_failure: 2\n"
        "environment: {modules: [CUDA], variables: {A: b}, interface: ib0}\nruns: /scratch/$NOBODY/x\n"
    )
    gpu = site.partitions["gpu"]
    assert (gpu.accelerators, gpu.gres, gpu.arch, gpu.max_time_s, gpu.cores_per_device) == (
        4,
        "gpu:h100",
        "amd64",
        14400.0,
        16,
    )
    assert (site.limits.jobs, site.limits.nodes, site.limits.time_s) == (3, 2, 7200.0)
    assert (site.signal_before_s, site.retry_node_failure, site.account) == (120, 2, "project1")
    assert (site.environment.modules, site.environment.variables, site.environment.interface) == (
        ("CUDA",),
        {"A": "b"},
        "ib0",
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty"),
        ("kind: slurm", "needs a partition"),
        ("partition: gpu", "needs a kind"),
        ("kind: slrm\npartition: gpu", "line 1, column 7: kind is local or slurm or kubernetes, not 'slrm'; did you"),
        ("kind: slurm\npartition: gpu\nacount: x", "line 3, column 1: 'acount' has no meaning in site; did"),
        ("kind: slurm\npartition: a b", "line 2, column 12: partition"),
        ("kind: slurm\npartition: cpu\npartitions: {gpu: }", "partition 'cpu' is none of gpu"),
        ("kind: slurm\npartition: gpu\naccount: 'x\n#SBATCH --uid=0'", "account is a word"),
        ("kind: slurm\npartition: gpu\noptions: ['--wrap=a b']", "options is an option of sbatch"),
        ("kind: slurm\npartition: gpu\nenvironment: {variables: {'A-B': x}}", "'A-B' is not the name of a variable"),
        ("kind: slurm\npartition: gpu\nenvironment: {variables: {PRONY_JOB: x}}", "PRONY_JOB is set by Prony"),
        ("kind: slurm\npartition: gpu\ncontainer: {engine: apptainer}", "apptainer needs an image"),
        ("kind: slurm\npartition: gpu\ncontainer: {engine: apptainer, image: {ppc: x}}", "'ppc' is not an arch"),
        ("kind: slurm\npartition: gpu\nlimits: {jobs: 0}", "jobs is a whole number of at least 1"),
        ("kind: slurm\npartition: gpu\nlimits: {time: soon}", "time is a time such as"),
        ("kind: slurm\nkind: local", "stands twice"),
        ("- kind", "site is names with values"),
        ("kind: [", "this is not YAML"),
        ("kind: slurm\npartition: gpu\nprice_per_kwh: much", "price_per_kwh"),
        ("kind: slurm\npartitions: {'x y': }", "no name of a partition"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(text: str, words: str) -> None:
    with pytest.raises(RequestError) as refused:
        parse_site(text, "here.yaml", "here")
    assert words in str(refused.value)
    assert str(refused.value).startswith("here.yaml")


def test_every_shipped_example_is_right_and_says_where_it_comes_from() -> None:
    examples = example_sites()
    assert {"jedi", "jureca", "olivia", "nrp"} <= set(examples)
    for name in examples:
        site = load_site(name, examples, Path("/nowhere"))
        assert site.about, name
        assert site.source, name
        assert site.kind in KINDS
        assert all(partition.arch for partition in site.partitions.values()), name


def test_a_site_is_found_by_name_the_users_own_first(tmp_path: Path) -> None:
    (tmp_path / "jedi.yaml").write_text("kind: slurm\npartition: mine\n")
    assert load_site("jedi", example_sites(), tmp_path).partition == "mine"
    assert load_site(str(tmp_path / "jedi.yaml"), {}).name == "jedi"
    assert load_site("local", {}, tmp_path) is LOCAL
    assert list(user_sites(tmp_path)) == ["jedi"]
    with pytest.raises(RequestError, match="unknown site 'jedy'; did you mean 'jedi'"):
        load_site("jedy", {}, tmp_path)
    with pytest.raises(RequestError, match="cannot be read"):
        load_site("./nothing.yaml", {})
    assert sites_folder({"PRONY_SITES": "/s"}) == Path("/s")
    assert sites_folder({"XDG_CONFIG_HOME": "/c"}) == Path("/c/prony/sites")


def test_a_partition_is_chosen_by_name() -> None:
    site = make_site(SLURM)
    assert choose_partition(site, None).name == "gpu"
    with pytest.raises(RequestError, match="unknown partition of here 'gpuu'; did you mean 'gpu'"):
        choose_partition(site, "gpuu")


def test_a_site_is_found_again_by_what_a_job_keeps_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.yaml").write_text(f"name: other\n{SLURM}", encoding="utf-8")
    monkeypatch.setenv("PRONY_SITES", str(tmp_path))
    for name in ("mine", str(tmp_path / "mine.yaml"), "jedi", "local"):
        assert find_site(find_site(name).found_as) == find_site(name)
