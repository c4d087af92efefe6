"""Which variables rewards get: names that look like secrets, and what a real worker has of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from guarded_workers import environment
from slime.errors import SlimeError
from slime.types import Verdict
from tests.reward.asking import rewards, score

SECRETS = [
    "WANDB_API_KEY", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID", "PGPASSWORD",
    "AWS_SESSION_TOKEN", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "OPENAI_API_KEY", "GOOGLE_APPLICATION_CREDENTIALS",
    "github_pat", "DB_PASS", "SSH_AUTH_SOCK", "SENTRY_DSN", "OPENAI_APIKEY", "MYSQL_PWD", "HF_TOKENS",
]  # fmt: skip
HARMLESS = [
    "PATH", "PWD", "OLDPWD", "HOME", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "TOKENIZERS_PARALLELISM", "HF_HOME",
    "KEYBOARD", "AUTHOR", "RAY_ADDRESS", "RAY_AUTH_MODE", "OMP_NUM_THREADS", "SLIME_TOKENIZER", "PATTERN", "COMPASS",
    "NO_PROXY",
]  # fmt: skip


def test_secrets_are_known_by_their_names() -> None:
    kept, withheld = environment.split(dict.fromkeys([*SECRETS, *HARMLESS], "x"), [])
    assert (withheld, sorted(kept)) == (sorted(SECRETS), sorted(HARMLESS))


def test_an_address_with_a_password_is_a_secret() -> None:
    values = {"http_proxy": "http://me:hunter2@proxy:3128", "https_proxy": "http://proxy:3128", "A": "ssh://me@host"}
    assert environment.split(values, [])[1] == ["http_proxy"]


def test_what_is_listed_comes_through() -> None:
    assert environment.split({"HF_TOKEN": "x", "MY_KEY": "y"}, ["MY_KEY"]) == ({"MY_KEY": "y"}, ["HF_TOKEN"])


@pytest.mark.usefixtures("installed")
def test_a_worker_lacks_what_is_withheld_and_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZOO_API_KEY", "secret")
    monkeypatch.setenv("ZOO_SEED", "7")
    log = tmp_path / "reward.log"
    with rewards(log) as service:
        assert score(service, "variable", "ZOO_SEED") == Verdict.invalid("7")
        missing = score(service, "variable", "ZOO_API_KEY").reason
    assert "(ZOO_API_KEY is withheld from rewards unless reward.environment lists it)" in missing
    assert "ZOO_API_KEY" in log.read_text().splitlines()[0]
    assert "secret" not in log.read_text()
    with rewards(environment=["ZOO_API_KEY"]) as service:
        assert score(service, "variable", "ZOO_API_KEY") == Verdict.invalid("secret")


def test_a_listed_variable_that_is_not_set_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZOO_API_KEY", "secret")
    with pytest.raises(SlimeError, match=r"reward.environment: the variable ZOO_API_KY is not set.*'ZOO_API_KEY'"):
        rewards(environment=["ZOO_API_KY"]).start()
