"""If these fail, a record that somebody publishes may hold their secrets."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from prony_node.contract.safe_files import redacted
from prony_node.facts.host import ALLOWED_NAMES, ALLOWED_PREFIXES, allowed, environment_facts

SECRET = (
    "TOKEN",
    "KEY",
    "SECRET",
    "PASSWORD",
    "PASSWD",
    "AUTH",
    "CREDENTIAL",
    "CREDENTIALS",
    "COOKIE",
    "CERT",
)
letters = st.text("ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcxyz0123456789", max_size=12)


@given(
    st.sampled_from([*ALLOWED_PREFIXES, *ALLOWED_NAMES]),
    letters,
    st.sampled_from(SECRET),
    letters,
    st.booleans(),
)
def test_a_name_that_looks_secret_never_passes(start: str, before: str, word: str, after: str, small: bool) -> None:
    name = start + before + (word.lower() if small else word) + after
    assert not allowed(name)
    assert environment_facts({name: "x"}) == {}


@given(st.text(max_size=30))
def test_only_listed_names_pass(name: str) -> None:
    assert not allowed(name) or name in ALLOWED_NAMES or name.startswith(ALLOWED_PREFIXES)


def test_what_changes_results_is_kept() -> None:
    given_ = {
        "CUDA_VISIBLE_DEVICES": "0", "NCCL_P2P_DISABLE": "1", "OMP_NUM_THREADS": "8",
        "OMP_PROC_BIND": "close",
        "TORCHINDUCTOR_MAX_AUTOTUNE": "1", "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        "LD_PRELOAD": "libtcmalloc.so", "SLURM_JOB_ID": "7", "HSA_OVERRIDE_GFX_VERSION": "9.0.0",
        "GOMP_SPINCOUNT": "0",
    }  # fmt: skip
    others = {
        "HOME": "/home/me",
        "PATH": "/bin",
        "AWS_SECRET_ACCESS_KEY": "x",
        "SLURM_JWT": "x",
        "SLURM_CLUSTER": "c",
    }
    assert environment_facts(given_ | others) == given_


@given(st.text("abc:/?#%", max_size=8), st.text("abc123", min_size=6, max_size=8))
def test_credentials_in_a_url_are_redacted(user: str, password: str) -> None:
    assert f"{user}:{password}Z9" not in redacted(f"x=https://{user}:{password}Z9@example.org/a")


def test_tokens_in_queries_and_options_are_redacted() -> None:
    assert redacted("https://example.org/a?sig=abc") == "https://example.org/a?***"
    assert redacted("a=1,my_token=abc,b=2") == "a=1,my_token=***,b=2"


@given(st.dictionaries(st.text(max_size=20), st.text(max_size=200), max_size=5))
def test_no_environment_breaks_it(environ: dict[str, str]) -> None:
    environment_facts(environ)
