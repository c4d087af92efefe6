"""What is seen of a user's file without running it, by every key that names one."""

from __future__ import annotations

from pathlib import Path

import pytest

from slime.by_path.source import arguments_key, path_key
from slime.compose.compose import compose
from slime.errors import SlimeError

RUN = ("+model=glm4-tiny", "+cluster=local")
OVER = "rollout.over_sampling=2"
FILE = """
class Without:
    def other(self): ...

def keep(group): return True
def choose(groups, count): return groups[:count]
def loss(logprobs, advantages): return -logprobs * advantages
def advantages(rewards): return rewards
def show(step, metrics): ...
def three(one, two, three): ...
"""
KEYS = {
    "filter.path": ("keep", "filter.options"),
    "buffer.path": ("choose", "buffer.options"),
    "algo.path": ("loss", "algo.options"),
    "algo.advantage_path": ("advantages", "algo.advantage_options"),
    "observe.trackers.path": ("show", "observe.trackers.function"),
    "filter.then.function.path": ("keep", "filter.then.function"),
}


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "my.py"
    path.write_text(FILE)
    return path


@pytest.mark.parametrize("key", KEYS)
def test_every_key_names_a_function_and_says_what_is_wrong(key: str, file: Path) -> None:
    name, home = KEYS[key]
    words, told = [*RUN, *([OVER] if "buffer" in key else [])], path_key(home)
    cfg = compose([*words, f"{key}=my.py:{name}"])
    section, _, last = home.rpartition(".")
    assert cfg is not None
    assert section
    assert last
    for path, said in {
        f"my.py:{name}x": f"{told}: there is no function '{name}x' in {file}. Did you mean '{name}'?",
        f"mi.py:{name}": f"there is no file {file.with_name('mi.py')}. Did you mean 'my.py'?",
        "my.py:three": "which nobody gives it. It gets what it names of ",
        "my.py:Without": f"{told}: class my.py:Without has no '" if not key.startswith("algo") else "Without has no '",
        "my.py": f"'my.py' names no function. Write FILE.py:FUNCTION, for instance {told}=my.py:score.",
    }.items():
        with pytest.raises(SlimeError) as refused:
            compose([*words, f"{key}={path}"])
        assert said in str(refused.value), path
    file.write_text(FILE.replace("return True", "return False").replace("...", "pass") + "#")
    recorded = f"{home}.sha256=0123"
    with pytest.raises(SlimeError, match=rf"my.py was changed.*with {home}.sha256=null"):
        compose([*words, f"{key}=my.py:{name}", recorded])


def test_keys_are_told_as_they_are_typed() -> None:
    assert [path_key(home) for _, home in KEYS.values()] == [
        *("filter.path", "buffer.path", "algo.path", "algo.advantage_path"),
        *("observe.trackers.function.path", "filter.then.function.path"),
    ]
    assert {key: arguments_key(key) for key in KEYS} == {key: f"{home}.arguments" for key, (_, home) in KEYS.items()}
    assert arguments_key("reward.parts.short.path") == "reward.parts.short.arguments"


def test_a_filter_may_be_chosen_beside_a_function(file: Path) -> None:
    with pytest.raises(SlimeError, match=r"filter=dynamic-sampling takes no function.*filter.then.function.path=..."):
        compose([*RUN, "filter=dynamic-sampling", "filter.path=my.py:keep"])
    cfg = compose([*RUN, "filter=dynamic-sampling", "filter.then.function.path=my.py:keep"])
    assert (cfg.filter.name, [*cfg.filter.then]) == ("dynamic-sampling", ["function"])
