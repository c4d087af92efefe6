"""What a run needs and an installation may lack; `slime plan` does without it."""

import socket
from pathlib import Path

import pytest

from slime import plugins
from slime.compose import needs
from slime.compose.compose import examine
from slime.config.passthrough import made_for
from slime.registry import Registry

RUN = ["+model=glm4-tiny", "+cluster=local"]


def told(monkeypatch: pytest.MonkeyPatch, sglang: str) -> list[str]:
    def version(distribution: str) -> str:
        return sglang if distribution == "sglang" else made_for()[distribution]

    monkeypatch.setattr(needs, "version", version)
    composed = examine(RUN)
    assert composed.problems == []
    return [str(need) for need in composed.needs]


def test_here_nothing_is_missing() -> None:
    assert examine(RUN).needs == []


@pytest.mark.parametrize(
    ("absent", "words"),
    [
        (["sglang"], "sglang is not installed. Run: pip install 'slime-rl[cpu]'. In a checkout: 'make setup'."),
        (["torch", "sglang"], "sglang and torch are not installed. "),
        (["ray", "sglang", "torch", "megatron-core"], "megatron-core, sglang, ray and 1 more packages are not"),
    ],
)
def test_what_is_not_installed_is_told_with_the_extra_that_brings_it(
    monkeypatch: pytest.MonkeyPatch, absent: list[str], words: str
) -> None:
    """An environment that really lacks them is in tests/third_party/test_plan_only.py."""
    monkeypatch.setattr(needs, "absent", lambda device: absent)
    (need,) = told(monkeypatch, made_for()["sglang"])
    assert need.startswith(words)


def test_another_version_has_other_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    (need,) = told(monkeypatch, "0.9.9")
    assert need.startswith(f"sglang 0.9.9 is installed, slime is made for {made_for()['sglang']}. Install it: pip ")


def test_the_builders_mark_is_no_other_version(monkeypatch: pytest.MonkeyPatch) -> None:
    assert told(monkeypatch, f"{made_for()['sglang']}+cu130") == []


def test_a_model_that_is_published_in_fp8_is_cast_by_the_command_that_does_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    need = next(
        need for need in examine(["+model=deepseek-r1", "+cluster=h100x128"]).needs if need.where == "model.path"
    )
    assert "'slime convert fp8-to-bf16 deepseek-ai/DeepSeek-R1 " in need.todo


def of(key: str, *words: str) -> str:
    composed = examine(words)
    [found] = [each for each in (*composed.problems, *composed.needs) if each.where.partition(",")[0] == key]
    return str(found)


CODER = ("+model=qwen2.5-coder-0.5b", "+cluster=h100x1")
SOURCE = "Qwen/Qwen2.5-Coder-0.5B-Instruct"


def test_a_model_is_fetched_into_its_own_folder_or_one_that_is_stated_with_its_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert f"Run 'hf download {SOURCE} --local-dir {SOURCE}', or " in of("model.path", *CODER)
    assert f"Run 'hf download {SOURCE} --local-dir {SOURCE}', or " in of("model.path", *CODER, f"model.path={SOURCE}")
    stated = ("model.path=models/Coder", f"model.source={SOURCE}")
    assert f"Run 'hf download {SOURCE} --local-dir models/Coder', or " in of("model.path", *CODER, *stated)


@pytest.mark.parametrize(
    ("model", "path", "command"),
    [
        ("qwen2.5-coder-0.5b", "models/Coder.old", ""),
        ("qwen2.5-coder-0.5b", "/nowhere/Qwen2.5-Coder-7B-Instruct", ""),
        ("qwen2.5-coder-0.5b", f"/nowhere/{SOURCE}", ""),
        ("qwen2.5-coder-0.5b", "./Coder", ""),
        ("qwen2.5-coder-0.5b", f"{SOURCE}-bf16x", "hf download {0} --local-dir {0}"),
        ("qwen2.5-coder-0.5b", "Qwen/Qwen2.5-Coder-1.5B-Instruct", "hf download {0} --local-dir {0}"),
        ("qwen2.5-coder-0.5b", "somebody/Qwen2.5-Coder-0.5B-Instruct", "hf download {0} --local-dir {0}"),
        ("deepseek-r1", "deepseek-ai/DeepSeek-R1-0528", "hf download {0} --local-dir {0}"),
        ("deepseek-r1", "/data/DeepSeek-V3-0324-bf16", ""),
        ("deepseek-r1", "deepseek-ai/DeepSeek-R1", "hf download {0} --local-dir {0}"),
    ],
)
def test_no_other_model_is_fetched_into_a_folder_of_another_name(
    model: str, path: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = of("model.path", f"+model={model}", "+cluster=h100x128", f"model.path={path}")
    assert f"there is no '{path}'" in found
    assert ("hf download" in found) == bool(command)
    assert command.format(path) in found
    assert "fp8-to-bf16" not in found


def test_a_missing_path_tells_its_neighbours(tmp_path: Path) -> None:
    for name in ("Coder-7B-Instruct", "Coder-14B", "data"):
        (tmp_path / name).mkdir()
    assert "Did you mean 'Coder-7B-Instruct'?" in of("model.path", *CODER, f"model.path={tmp_path}/Coder-7B-Instuct")
    found = of("model.path", *CODER, f"model.path={tmp_path}/Coder-3B-Chat-of-mine")
    assert "beside it are Coder-" in found
    assert f"(this plan is of {SOURCE})" in found


def test_a_model_without_a_config_in_the_package_has_its_command_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = of("model.path", "+model=glm4.6", "+cluster=h100x64", "task=arithmetic", "model.config=null")
    assert "Run 'hf download zai-org/GLM-4.6 --local-dir zai-org/GLM-4.6'" in found
    found = of("rollout.fp8", "+model=glm4.5", "+cluster=h100x64", "rollout.fp8=zai-org/GLM-4.5-FP8")
    assert "run 'hf download zai-org/GLM-4.5-FP8 --local-dir zai-org/GLM-4.5-FP8'" in found


@pytest.mark.parametrize("key", ["data", "eval"])
def test_no_other_data_set_is_fetched_for_a_file_of_ones_own(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my-owm.jsonl").touch()
    run = ("+model=glm4.5", "+cluster=h100x64")
    assert "--local-dir zhuzilin/" in of(f"{key}.path", *run)
    found = of(f"{key}.path", *run, f"{key}.path={tmp_path}/my-own.jsonl")
    assert "Did you mean 'my-owm.jsonl'?" in found
    assert "hf download" not in found
    name = "somebody/problems-1.5"
    found = of(f"{key}.path", *run, f"{key}.path={name}")
    assert f"'hf download --repo-type dataset {name} --local-dir {name}'" in found
    own = "zhuzilin/dapo-math-17k/dapo-math-17k.jsonl" if key == "data" else "zhuzilin/aime-2024/aime-2024.jsonl"
    assert "--local-dir zhuzilin/" in of(f"{key}.path", *run, f"{key}.path={own}")
    (tmp_path / own).parent.mkdir(parents=True)
    (tmp_path / own).touch()
    found = of(f"{key}.path", *run, f"{key}.path={own}x")
    assert "hf download" not in found
    assert f"Did you mean '{Path(own).name}'?" in found


@pytest.mark.parametrize("path", ["someone/problems/main/train.jsonl", "someone/problems/train.jsonl"])
def test_a_data_set_is_fetched_into_the_folder_of_its_name(path: str) -> None:
    """Also where its files lie in subfolders, which the download keeps."""
    [need] = examine([*RUN, f"data.path={path}", "data.source=someone/problems"]).needs
    assert "--local-dir someone/problems'" in need.todo


def test_a_data_set_of_another_name_is_fetched_beside_its_file() -> None:
    [need] = examine([*RUN, "data.path=prompts/train.jsonl", "data.source=someone/problems"]).needs
    assert "--local-dir prompts'" in need.todo


def test_a_network_interface_is_looked_for_on_the_only_host() -> None:
    known = socket.if_nameindex()[0][1]
    [need] = examine([*RUN, f"cluster.socket_interface={known}x"]).needs
    assert str(need) == (
        f"cluster.socket_interface: this host has no network interface '{known}x'. Did you mean '{known}'?"
    )
    assert examine([*RUN, f"cluster.socket_interface={known}"]).needs == []


def test_what_engines_record_of_routing_needs_a_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run that replays reads it itself."""
    monkeypatch.setattr(plugins.load(), "explanations", Registry("explanation", []))
    run = ["+model=glm4-moe-tiny", "+cluster=local"]
    [need] = examine([*run, "observe.routing=true"]).needs
    assert str(need).startswith(
        "observe.routing: what engines record is read by slime-megatron, which is not installed. "
        "Run: pip install slime-megatron. In a checkout: pip install ./plugins/megatron, or "
    )
    assert examine([*run, "train.routing_replay=true"]).needs == []
