"""What a run needs and an installation may lack; `slime plan` does without it."""

from importlib.metadata import PackageNotFoundError

import pytest

from slime.config import needs
from slime.config.compose import examine
from slime.config.passthrough import made_for

RUN = ["+model=glm4-tiny", "+cluster=local"]


def told(monkeypatch: pytest.MonkeyPatch, sglang: str | None) -> list[str]:
    def version(distribution: str) -> str:
        if distribution == "sglang" and sglang is None:
            raise PackageNotFoundError(distribution)
        return str(sglang) if distribution == "sglang" else made_for()[distribution]

    monkeypatch.setattr(needs, "version", version)
    composed = examine(RUN)
    assert composed.problems == []
    return [str(need) for need in composed.needs]


def test_here_nothing_is_missing() -> None:
    assert examine(RUN).needs == []


def test_without_sglang_a_run_is_planned_and_told_where_the_installation_is_described(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`pip install slime-rl` alone brings none; the extra `gpu` and the CPU set-up do."""
    (need,) = told(monkeypatch, None)
    assert need == f"sglang {made_for()['sglang']} is not installed. docs/install.md says how it comes with slime."


def test_another_version_has_other_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    (need,) = told(monkeypatch, "0.9.9")
    assert need.startswith(f"sglang 0.9.9 is installed, slime is made for {made_for()['sglang']}. Install it: pip ")


def test_the_builders_mark_is_no_other_version(monkeypatch: pytest.MonkeyPatch) -> None:
    assert told(monkeypatch, f"{made_for()['sglang']}+cu130") == []
