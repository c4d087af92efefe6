"""What slime tells an engine, and that the user has the last word."""

import json
from pathlib import Path

import pytest

from slime.config.schema import Device, EngineGroupConfig, Placement, Role
from slime.topology.engines import BATCH_INVARIANT, MAX_IMBALANCE
from slime.topology.server_fields import graph_step
from slime.topology.topology import read_topology
from slime_testing.engines import cpu_config

MODEL = Path("/models/tiny")


def test_arguments_are_what_slime_sets_and_then_the_users():
    cfg = cpu_config(schedule_policy="lpm", sleep_on_idle=False)
    fields = read_topology(cfg).engines[0].fields
    assert fields["load_format"] == "dummy"
    assert fields["device"] == "cpu"
    assert fields["schedule_policy"] == "lpm"
    assert fields["sleep_on_idle"] is False, "rollout.sglang has the last word"
    assert fields["chunked_prefill_size"] == -1, "torch's attention has other bits for a part of a prompt"


def test_every_field_is_one_of_server_args():
    """Checked against the installed SGLang's source: importing it takes seconds."""
    from slime.config.passthrough import fields_of

    assert set(read_topology(cpu_config()).engines[0].fields) <= set(fields_of("rollout.sglang"))


@pytest.mark.parametrize("section", ["rollout", "eval"])
def test_only_stop_strings_need_a_tokenizer_inside(section):
    cfg = cpu_config()
    cfg.eval.path, cfg.eval.sampling.stop = "held-out.jsonl", []
    assert read_topology(cfg).engines[0].fields["skip_tokenizer_init"] is True
    getattr(cfg, section).sampling.stop = ["\n"]
    assert read_topology(cfg).engines[0].fields["skip_tokenizer_init"] is False


def test_layer_cut_joins_the_users_overrides():
    cfg = cpu_config(json_model_override_args='{"rope_theta": 1e6}')
    cfg.model.num_layers = 2
    overrides = json.loads(read_topology(cfg).engines[0].fields["json_model_override_args"])
    assert overrides == {"rope_theta": 1e6, "num_hidden_layers": 2}


def test_engines_of_the_trained_model_compute_logits_as_trainers_do():
    cfg = cpu_config()
    cfg.rollout.engines = {"judge": EngineGroupConfig(model=str(MODEL))}
    assert all("enable_fp32_lm_head" not in engine.fields for engine in read_topology(cfg).every_engine)
    cfg.model.fp32_lm_head = True
    sampling, frozen = read_topology(cfg).every_engine
    assert sampling.fields["enable_fp32_lm_head"] is True
    assert "enable_fp32_lm_head" not in frozen.fields


@pytest.mark.parametrize("device", Device)
def test_engines_of_the_trained_model_are_batch_invariant_as_trainers_are(device):
    cfg = cpu_config()
    cfg.cluster.device, cfg.cluster.num_nodes = device, 3
    cfg.rollout.sglang = {}
    cfg.rollout.engines = {"judge": EngineGroupConfig(model=str(MODEL))}
    assert all(BATCH_INVARIANT not in engine.environment for engine in read_topology(cfg).every_engine)
    cfg.model.batch_invariant = True
    sampling, frozen = read_topology(cfg).every_engine
    assert sampling.environment[BATCH_INVARIANT] == "1"
    assert sampling.fields["enable_deterministic_inference"] is True
    assert sampling.fields["attention_backend"] == ("triton" if device is Device.cuda else "torch_native")
    assert BATCH_INVARIANT not in frozen.environment
    assert "enable_deterministic_inference" not in frozen.fields


@pytest.mark.parametrize("placement", Placement)
def test_only_colocated_engines_give_memory_back(placement):
    cfg = cpu_config()
    cfg.cluster.device, cfg.cluster.placement, cfg.cluster.num_nodes = Device.cuda, placement, 2
    assert read_topology(cfg).engines[0].fields["enable_memory_saver"] is (placement is Placement.colocated)


@pytest.mark.parametrize(("num_engines", "most"), [(1, 40), (2, 40 + MAX_IMBALANCE)])
def test_cuda_graphs_cover_every_request_an_engine_may_have(num_engines, most):
    cfg = cpu_config()
    cfg.cluster.device, cfg.rollout.max_requests_per_engine = Device.cuda, 40
    cfg.rollout.engines["default"] = EngineGroupConfig(devices=num_engines)
    assert read_topology(cfg).engines[0].fields["cuda_graph_max_bs_decode"] == most
    cfg.rollout.sglang["cuda_graph_max_bs_decode"] = 8
    assert read_topology(cfg).engines[0].fields["cuda_graph_max_bs_decode"] == 8, "the user's own setting wins"


def test_graphs_count_requests_a_data_parallel_rank():
    cfg = cpu_config(tp_size=8, dp_size=4, enable_dp_attention=True)
    cfg.cluster.device, cfg.rollout.max_requests_per_engine = Device.cuda, 42
    cfg.rollout.engines["default"] = EngineGroupConfig(devices=8)
    assert read_topology(cfg).engines[0].fields["cuda_graph_max_bs_decode"] == 12, "two ranks share a batch"


def test_drafts_have_the_shape_that_sglang_would_choose():
    def shape(**sglang):
        fields = read_topology(cpu_config(speculative_algorithm="EAGLE", **sglang)).engines[0].fields
        return [fields[f"speculative_{key}"] for key in ("num_steps", "eagle_topk", "num_draft_tokens")]

    assert shape() == [3, 1, 4]
    assert shape(speculative_num_steps=2, speculative_eagle_topk=1) == [2, 1, 3]


@pytest.mark.parametrize(
    ("sglang", "step"),
    [
        ({"tp_size": 8}, 1),
        ({"tp_size": 8, "moe_dense_tp_size": 1}, 8),
        ({"tp_size": 8, "dp_size": 2, "enable_dp_attention": True}, 4),
        ({"tp_size": 8, "dp_size": 8, "enable_dp_attention": True}, 1),
        ({"tp_size": 8, "moe_dense_tp_size": 1, "speculative_algorithm": "EAGLE"}, 2),
    ],
)
def test_batches_for_which_graphs_are_captured(sglang, step):
    (group,) = read_topology(cpu_config(**sglang)).groups
    assert graph_step(group) == step


def test_every_engine_draws_with_a_seed_of_its_own():
    cfg = cpu_config()
    cfg.rollout.engines["default"] = EngineGroupConfig(devices=3)
    seeds = [read_topology(cfg).engines[index].fields["random_seed"] for index in range(3)]
    assert seeds == [cfg.run.seed, cfg.run.seed + 1, cfg.run.seed + 2]


def test_a_groups_fields_win_over_those_of_all():
    cfg = cpu_config(schedule_policy="lpm", page_size=1)
    cfg.cluster.ib_devices = ["mlx5_0", "mlx5_1"]
    cfg.rollout.engines = {
        "first": EngineGroupConfig(role=Role.prefill, devices=2, sglang={"schedule_policy": "fcfs"}),
        "second": EngineGroupConfig(role=Role.decode, devices=4, devices_per_engine=2),
    }
    first, second = (read_topology(cfg).engines[index].fields for index in (1, 2))
    assert (first["schedule_policy"], second["schedule_policy"]) == ("fcfs", "lpm")
    assert (first["tp_size"], second["tp_size"], first["page_size"]) == (1, 2, 1)
    assert (first["disaggregation_mode"], second["disaggregation_mode"]) == ("prefill", "decode")
    assert first["disaggregation_ib_device"] == "mlx5_0,mlx5_1"
    cfg.rollout.sglang["disaggregation_transfer_backend"] = "mooncake_tcp"
    assert "disaggregation_ib_device" not in read_topology(cfg).engines[0].fields


def test_a_decode_engine_never_has_more_than_its_own_requests():
    """No engine of a pair is given more than another."""
    cfg = cpu_config()
    cfg.cluster.device, cfg.rollout.max_requests_per_engine = Device.cuda, 40
    cfg.rollout.engines = {role.name: EngineGroupConfig(role=role, devices=2) for role in (Role.prefill, Role.decode)}
    assert read_topology(cfg).engines[2].fields["cuda_graph_max_bs_decode"] == 40
