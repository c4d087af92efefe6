"""Keys of Megatron-core and SGLang against the table of their fields, and the table against the imported classes."""

import ast
import dataclasses
import fnmatch
import importlib
from typing import Any

import pytest

from slime.config.megatron_fields import ACCEPTED, UNSUPPORTED, reason_against
from slime.config.passthrough import SET_BY_SLIME, SOURCES, check_section, fields_of, fits, homes_of
from upkeep.annotations import in_words, takes


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
    kinds = takes(ast.parse(annotation, mode="eval").body)
    assert [value for value in good if not any(fits(kind, value) for kind in kinds)] == []
    assert [value for value in bad if any(fits(kind, value) for kind in kinds)] == []


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
        ("train.megatron", "window_size", [1, 2], "is not supported: slime's layers do not compute it. Remove it."),
        ("train.megatron", "softmax_type", "off-by-one", "slime's layers do not compute it"),
        ("train.megatron", "qk_l2_norm", True, "slime's layers do not compute it"),
        ("train.megatron", "layernorm_zero_centered_gamma", True, "slime's layers do not compute it"),
        ("train.megatron", "fp8", "hybrid", "is not supported: it needs Transformer Engine"),
        ("train.megatron", "cuda_graph_impl", "local", "is not supported: it needs Transformer Engine"),
        ("train.megatron", "moe_router_load_balancing_type", "sinkhorn", "must be none or aux_loss, got sinkhorn"),
        ("train.megatron", "moe_router_load_balancing_type", "seq_aux_loss", "must be none or aux_loss"),
        ("train.megatron", "moe_aux_loss_coeff", [0.1], "must be one number, got [0.1]"),
        ("train.megatron", "moe_z_loss_coeff", -1.0, "must be at least 0, got -1.0. It is: weight of the routers'"),
        ("train.megatron", "recompute_modules", ["mlp", "all"], "shared_experts, got all"),
        ("train.megatron", "recompute_num_layers", 0, "must be at least 1 and below 100000, got 0"),
        ("train.megatron", "init_method_std", 0, "must be above 0, got 0"),
        ("train.megatron", "moe_enable_deepep", True, "another name today. Use train.megatron.moe_token_dispatcher_ty"),
        ("train.megatron", "decoder_last_pipeline_num_layers", 2, "Use train.megatron.num_layers_in_last_pipeline_st"),
        ("train.megatron", "--decoder-first-pipeline-num-layers", 2, "Use train.megatron.num_layers_in_first_pipel"),
        ("train.optimizer", "decoupled_lr", 1e-5, "every part of the model has the learning rate of its stage"),
        ("train.megatron", "pp", 2, "another name today. Use train.megatron.pipeline_model_parallel_size."),
        ("train.optimizer", "betas", [0.9, 0.95], "another name today. Use train.optimizer.adam_beta1="),
        ("train.optimizer", "optimizer", "sgd", "must be adam, got sgd"),
        ("train.optimizer", "adam_beta1", 1.5, "must be at least 0 and below 1, got 1.5"),
        ("train.optimizer", "adam_eps", 0.0, "must be above 0, got 0.0"),
        ("train.optimizer", "lr", float("inf"), "must be above 0 and below 1, got inf"),
        ("train.optimizer", "use_distributed_optimizer", False, "must be true, got false"),
        ("train.optimizer", "log_num_zeros_in_grad", True, "nothing in slime reads it. Remove it"),
        ("train.ddp", "overlap_param_gather", True, "still be on their way when they are published"),
        ("train.ddp", "average_in_collective", True, "is not supported: nothing in slime reads it"),
        ("train.ddp", "zzz", 1, "Its fields are in DistributedDataParallelConfig of the installed megatron-core"),
        ("rollout.sglang", "attention_backend", "tritn", "(did you mean 'triton'?)"),
        ("rollout.sglang", "quantization", "fp7", "must be one of awq, fp8"),
        ("rollout.sglang", "tp_size", 2.0, "must be int, got 2.0"),
        ("rollout.sglang", "tp", 2, "ServerArgs has no such field. Did you mean 'tp_size'?"),
        ("rollout.sglang", "port", 30000, "is not yours to set. Remove it: slime sets it for every engine it starts"),
        ("rollout.sglang", "nsa_decode_backend", "fa3", "another name today. Use rollout.sglang.dsa_decode_backend."),
        ("rollout.sglang", "server_concurrency", 512, "another name today. Use rollout.max_requests_per_engine."),
        ("rollout.sglang", "custom_sigquit_handler", "x", "takes code"),
    ],
)
def test_wrong_key_or_value(section: str, key: str, value: Any, says: str) -> None:
    (line,) = faults(section, **{key: value})
    assert line.startswith(f"{section}.{key}: ")
    assert says in line


def test_home_of_a_key_without_its_section() -> None:
    assert homes_of("clip_grad") == ["train.optimizer.clip_grad"]
    assert homes_of("attention_backend") == ["rollout.sglang.attention_backend"]  # the trainer has no choice of it
    assert homes_of("--decoder-last-pipeline-num-layers") == ["train.megatron.num_layers_in_last_pipeline_stage"]
    assert homes_of("port") == []
    assert homes_of("train.lr") == ["train.optimizer.lr"]
    assert homes_of("data.max_samples") == ["data.limit"]
    assert homes_of("rollout.lr") == []


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
def test_fields_of_the_table_are_those_of_the_imported_class(section: str, module: str, name: str) -> None:
    imported = {field.name for field in dataclasses.fields(getattr(importlib.import_module(module), name))}
    assert fields_of(section).keys() == {field for field in imported if not field.startswith("_")}


@pytest.mark.parametrize("section", ACCEPTED)
def test_what_is_accepted_exists_in_the_installed_version_and_is_settled_once(section: str) -> None:
    accepted = ACCEPTED[section].keys()
    assert accepted <= fields_of(section).keys() - SET_BY_SLIME[section].keys()
    assert [name for name in accepted if reason_against(name)] == []


def test_every_reason_is_against_a_field_of_the_installed_version() -> None:
    names = {name for section in ACCEPTED for name in fields_of(section)}
    patterns = [pattern for listed in UNSUPPORTED.values() for pattern in listed.split()]
    assert [pattern for pattern in patterns if not fnmatch.filter(names, pattern)] == []
