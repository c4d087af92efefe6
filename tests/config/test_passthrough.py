"""Keys of Megatron-core and SGLang against the installed sources, and the reader against the imported classes."""

import ast
import dataclasses
import importlib
from typing import Any

import pytest

from slime.config.annotations import accepts, in_words
from slime.config.passthrough import SET_BY_SLIME, SOURCES, check_section, fields_of, sections_with
from slime.errors import SlimeError


def faults(section: str, **values: Any) -> list[str]:
    return [str(problem) for problem in check_section(section, values)]


@pytest.mark.parametrize(
    ("annotation", "good", "bad"),
    [
        ("bool", [True, False], [1, "true", None]),
        ("int", [0, -1], [True, 1.0, "1", None]),
        ("float", [1, 1.5], [True, "1e-3", None]),
        ("str", ["a", ""], [1, None]),
        ("Optional[int]", [3, None], ["3", 1.5]),
        ("int | None", [3, None], ["3"]),
        ("Literal['full', 'selective']", ["full"], ["ful", None]),
        ("Optional[Literal['fp32']]", ["fp32", None], ["fp16"]),
        ("Union[int, List[int]]", [1, [1, 2]], ["1", ["a"], None]),
        ("Tuple[int, ...]", [[1, 2]], [1, ["a"]]),
        ("Dict[str, int]", [{"a": 1}], [{"a": "b"}, ["a"]]),
        ("torch.dtype", ["fp32", "bf16"], ["int7", None]),
        ("Callable", [], ["gelu", None, 1]),
        ("List[str]", [[], ["a"]], ["a", [1]]),
    ],
)
def test_annotation_accepts_what_yaml_may_give(annotation: str, good: list[Any], bad: list[Any]) -> None:
    node = ast.parse(annotation, mode="eval").body
    assert [value for value in good if not accepts(node, value)] == []
    assert [value for value in bad if accepts(node, value)] == []


def test_annotation_in_words() -> None:
    assert in_words(ast.parse("Optional[Literal['a', 'b']]", mode="eval").body) == "one of a, b or null"


def test_right_keys_are_silent() -> None:
    assert faults("train.megatron", tensor_model_parallel_size=2, bf16=True, recompute_granularity="full") == []
    assert faults("train.optimizer", lr=1e-3, weight_decay=0, clip_grad=1) == []
    assert faults("train.ddp", overlap_grad_reduce=True, bucket_size=None) == []
    assert faults("rollout.sglang", tp_size=2, attention_backend="fa3", log_level="info") == []


@pytest.mark.parametrize(
    ("section", "key", "value", "says"),
    [
        ("train.megatron", "tensor_model_paralel_size", 2, "no such field. Did you mean 'tensor_model_parallel_size'?"),
        ("train.megatron", "lr", 1e-3, "no such field. Did you mean 'train.optimizer.lr'?"),
        ("train.megatron", "q_lora_rank", "big", "must be int"),
        ("train.megatron", "init_method", "normal", "takes code (Optional[Callable])"),
        ("train.megatron", "calculate_per_token_loss", True, "is not yours to set. Remove it: losses carry"),
        ("train.optimizer", "lr", "fast", "must be float or null, got 'fast'"),
        ("train.ddp", "zzz", 1, "Its fields are in DistributedDataParallelConfig of the installed megatron-core"),
        ("rollout.sglang", "attention_backend", "tritn", "(did you mean 'triton'?)"),
        ("rollout.sglang", "quantization", "fp7", "must be one of awq, fp8"),
        ("rollout.sglang", "tp_size", 2.0, "must be int, got 2.0"),
        ("rollout.sglang", "port", 30000, "is not yours to set. Remove it: slime sets it for every engine it starts"),
        ("rollout.sglang", "custom_sigquit_handler", "x", "takes code"),
    ],
)
def test_wrong_key_or_value(section: str, key: str, value: Any, says: str) -> None:
    (line,) = faults(section, **{key: value})
    assert line.startswith(f"{section}.{key}: ")
    assert says in line


def test_home_of_a_key_without_its_section() -> None:
    assert sections_with("clip_grad") == ["train.optimizer"]
    assert sections_with("attention_backend") == ["train.megatron", "rollout.sglang"]


@pytest.mark.parametrize("section", SOURCES)
def test_what_slime_sets_exists_in_the_installed_version(section: str) -> None:
    assert SET_BY_SLIME[section].keys() <= fields_of(section).keys()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("section", "module", "name"),
    [
        ("train.megatron", "megatron.core.transformer.transformer_config", "MLATransformerConfig"),
        ("train.optimizer", "megatron.core.optimizer", "OptimizerConfig"),
        ("train.ddp", "megatron.core.distributed", "DistributedDataParallelConfig"),
    ],
)
def test_fields_read_from_source_are_those_of_the_imported_class(section: str, module: str, name: str) -> None:
    imported = {field.name for field in dataclasses.fields(getattr(importlib.import_module(module), name))}
    assert fields_of(section).keys() == {field for field in imported if not field.startswith("_")}


def test_without_sglang_it_says_where_the_installation_is_described(monkeypatch: pytest.MonkeyPatch) -> None:
    """`pip install slime-rl` alone brings none; the extra `gpu` and the CPU set-up do."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    fields_of.cache_clear()
    with pytest.raises(SlimeError, match=r"sglang is not installed\. docs/install\.md says how"):
        fields_of("rollout.sglang")
