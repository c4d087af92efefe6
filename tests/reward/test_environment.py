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
    "SLACK_WEBHOOK_URL", "WEBHOOK", "DISCORD_WEBHOOKS", "STRIPE_SK", "AZURE_STORAGE_SAS", "AWS_SESSION", "URL_SIG",
    "KUBECONFIG", "PGPASSFILE", "BEARER", "REQUEST_SIGNATURE", "MY_COOKIES", "DBUS_SESSION_BUS_ADDRESS", "GH_PAT",
]  # fmt: skip
HARMLESS = [
    "PATH", "PWD", "OLDPWD", "HOME", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "TOKENIZERS_PARALLELISM", "HF_HOME",
    "KEYBOARD", "AUTHOR", "RAY_ADDRESS", "RAY_AUTH_MODE", "OMP_NUM_THREADS", "SLIME_TOKENIZER", "PATTERN", "COMPASS",
    "NO_PROXY", "DESKTOP_SESSION", "XDG_SESSION_TYPE", "XDG_SESSION_ID", "TERM_SESSION_ID", "TASK", "DESIGN", "SASH",
    "SIGNAL", "HF_HUB_OFFLINE", "NCCL_SOCKET_IFNAME", "KEYRINGS_DIR", "ASK_FIRST",
]  # fmt: skip


def test_secrets_are_known_by_their_names() -> None:
    kept, withheld = environment.split(dict.fromkeys([*SECRETS, *HARMLESS], "x"), [])
    assert (withheld, sorted(kept)) == (sorted(SECRETS), sorted(HARMLESS))


LONG = "abcdefghij0123456789ABCDEFGHIJ012345"
SECRET_VALUES = [
    "http://me:hunter2@proxy:3128", "https://:hunter2@proxy:3128", "https://ghx0123@proxy:3128", "redis://:pw@cache/0",
    "postgresql://me:pw@db/zoo", "https://token@github.com/zoo/data.git", "a,b https://x:y@host/", "ssh://me:pw@host",
    f"https://bucket.s3.amazonaws.com/a?X-Amz-Date=1&X-Amz-Signature={LONG}", "https://blob.net/a?sv=2024&sig=Zm9v%3D",
    f"https://storage.googleapis.com/a?X-Goog-Credential={LONG}", "https://hub.example/api?token=abc", "?sv=1&sig=Zm9v",
    "https://maps.example/v1?key=abc", "https://cdn.example/a?Expires=1&Signature=abc", "sv=2024-01&sp=r&sig=Zm9v%3D",
    "DefaultEndpointsProtocol=https;AccountName=zoo;AccountKey=Zm9v==", "Endpoint=sb://x/;SharedAccessKey=Zm9v",
    "host=db user=me password=pw", "-Djavax.net.ssl.keyStorePassword=pw", "Server=db;Uid=me;Pwd=pw",
    f"sk-{LONG}", f"sk-proj-{LONG}", f"sk-ant-api03-{LONG}", f"sk_live_{LONG}", f"rk_test_{LONG}", f"ghp_{LONG}",
    f"github_pat_{LONG}", f"gho_{LONG}", f"glpat-{LONG}", f"hf_{LONG}", "AKIAIOSFODNN7EXAMPLE", "ASIAIOSFODNN7EXAMPLE",
    f"xoxb-{LONG}", f"xapp-1-{LONG}", f"AIza{LONG[:35]}", f"ya29.{LONG}", f"npm_{LONG}", f"pypi-{LONG}",
    f"nvapi-{LONG}", f"r8_{LONG}", f"SG.{LONG}.{LONG}", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln", f"Bearer {LONG}",
    "-----BEGIN OPENSSH PRIVATE KEY-----\nb3Blbn", "-----BEGIN RSA PRIVATE KEY-----", f"--api-key {LONG} sk-{LONG}",
    "https://hooks.slack.com/services/T0/B0/x", "https://discord.com/api/webhooks/1/x",
]  # fmt: skip
HARMLESS_VALUES = [
    "", "1", "true", "http://proxy:3128", "https://proxy.example:3128/", "socks5h://10.0.0.1:1080", "localhost,.corp",
    "ssh://git@github.com/zoo/data.git", "git@github.com:zoo/data.git", "git+ssh://git@host/a", "sftp://me@host/a",
    "/usr/local/cuda/lib64:/usr/lib/x86_64-linux-gnu", "/opt/a:/opt/b/site-packages", "/data/hf_home", "hf_transfer",
    "rs=0:di=01;34:ln=01;36:*.tar=01;31:*.asc=00;32:*.key=00;33:*.sig=00;36:", "C.UTF-8", "xterm-256color",
    "max_split_size_mb:512,expandable_segments:True", "--xla_gpu_autotune_level=2 --xla_dump_to=/data/x", "0,1,2,3",
    "-O2 -fdesign=1 -Dkey=value", "^docker0,lo", "mlx5_0:1,mlx5_1:1", "https://mirror.example/simple?format=json",
    "https://example.com/a?page=2&q=monkeys", "https://example.com/@zoo/data", "user@host", "granularity=fine,compact",
    "/opt/sk-learn-models-2024/data-of-this-month", "sk-learn", "task-0123456789-abcdefghijkl", "hf_xet", "AKIA",
    "d670460b4b4aece5915caf5c68d12f560a9fe3e4", "gpt-4o-mini-2024-07-18", "eyJ", "Basic", "tcp://10.0.0.1:6379",
    "-----BEGIN CERTIFICATE-----", "threads=8;design=2;num_tokens=4096", "postgresql://db/zoo", "file:///data/a@b/c.txt",
    "unix:path=/run/user/0/bus", "https://pypi.org/simple", "%h/.cache", "{\"a\": 1}",
]  # fmt: skip


@pytest.mark.parametrize("value", SECRET_VALUES)
def test_a_value_that_is_or_holds_a_key_is_withheld(value: str) -> None:
    assert environment.split({"ZOO": value}, []) == ({}, ["ZOO"])


@pytest.mark.parametrize("value", HARMLESS_VALUES)
def test_other_values_come_through(value: str) -> None:
    assert environment.split({"ZOO": value}, []) == ({"ZOO": value}, [])


def test_a_number_of_tokens_is_no_token() -> None:
    environ = {"MAX_TOKENS": "4096", "NUM_KEYS": "8", "HF_TOKENS": "hf_1", "PIN_PASS": "1234"}
    assert environment.split(environ, [])[1] == ["HF_TOKENS", "PIN_PASS"]


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
