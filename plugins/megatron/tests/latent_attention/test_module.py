"""Multi-head latent attention and softmax-routed experts in layouts where upstream's local spec goes wrong.

Megatron-core draws the same whole weights on every tensor-parallel rank on a CPU, so all layouts start alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from slime_testing.ranks import Rank, run_ranks

pytestmark = pytest.mark.slow

VOCAB_SIZE = 96
LAYOUTS = {"tp2": {"tensor_model_parallel_size": 2}, "cp2": {"context_parallel_size": 2}}


class LatentBridge:
    """A family of its own: latent attention with compressed queries, a dense layer and a layer of experts."""

    family = "latent"

    def transformer_config(self, hf: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "activation_func": "silu",
            "add_bias_linear": False,
            "ffn_hidden_size": 48,
            "gated_linear_unit": True,
            "hidden_size": 32,
            "kv_lora_rank": 16,
            "moe_ffn_hidden_size": 16,
            "moe_layer_freq": [0, 1],
            "moe_router_dtype": "fp32",
            "moe_router_load_balancing_type": "none",
            "moe_router_topk": 2,
            "multi_latent_attention": True,
            "normalization": "RMSNorm",
            "num_attention_heads": 4,
            "num_layers": 2,
            "num_moe_experts": 4,
            "q_lora_rank": 24,
            "qk_head_dim": 16,
            "qk_layernorm": True,
            "qk_pos_emb_head_dim": 8,
            "rope_type": "rope",
            "v_head_dim": 12,
        }

    def model_kwargs(self, hf: Mapping[str, Any]) -> dict[str, Any]:
        return {}

    def block_spec(self, config: Any, vp_stage: int | None) -> Any:
        from slime_megatron.latent_attention.module import mla
        from slime_megatron.mixture_of_experts.module import moe
        from slime_megatron.transformer import specs

        def layer(is_moe: bool) -> Any:
            mlp = moe(config) if is_moe else specs.gated_mlp(config)
            return specs.transformer_layer(config, attention=mla(config), mlp=mlp)

        return specs.decoder_block(config, vp_stage, layer)


def gradients(rank: Rank, layout: dict[str, Any]) -> tuple[float, dict[str, tuple[torch.Tensor, int | None]]]:
    """Loss, and this rank's gradients with the dimension they are sharded in."""
    from megatron_core_portable import cpu_stands_in_for_cuda
    from slime.algo.sft import Sft
    from slime.config.schema import Init, LossMean, SlimeConfig
    from slime.train.packing import pack
    from slime_megatron.train import megatron
    from slime_megatron.train.local_batch import local_micro_batches
    from slime_megatron.train.objective import StepLoss
    from slime_megatron.train.step import GradientCheck, accumulate_gradients
    from slime_testing.recorded import recorded_samples

    cfg = SlimeConfig()
    cfg.model.init, cfg.train.megatron, cfg.train.ddp = Init.random, layout, {"use_distributed_optimizer": False}
    megatron.initialize(cfg, *rank)
    hf = {"vocab_size": VOCAB_SIZE, "max_position_embeddings": 128}
    model = megatron.build(cfg, LatentBridge(), hf)
    GradientCheck(model)
    (batch,) = pack(recorded_samples(12, VOCAB_SIZE), num_dp=1, align=4, max_tokens=100, loss_mean=LossMean.token)
    with cpu_stands_in_for_cuda():
        micro_batches = local_micro_batches(batch, torch.device("cpu"))
        parts = accumulate_gradients(model, micro_batches, StepLoss(Sft(), micro_batches, {}, is_first=True))
    found = {
        name: (parameter.main_grad.clone(), parameter.partition_dim if parameter.tensor_model_parallel else None)
        for name, parameter in model.modules[0].named_parameters()
        if ".experts." not in name
        and "linear_fc1" not in name  # [gate | up] is sharded half by half
        and hasattr(parameter, "tensor_model_parallel")
    }
    found |= {
        name: (parameter.main_grad.clone(), None)
        for name, parameter in model.modules[0].named_parameters()
        if not hasattr(parameter, "tensor_model_parallel")
    }
    return sum(float(part.loss) for part in parts), found


@pytest.fixture(scope="module")
def one_rank() -> tuple[float, dict[str, Any]]:
    return run_ranks(gradients, 1, {})[0]


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_equal_one_rank(name: str, one_rank: tuple[float, dict[str, Any]]) -> None:
    wanted_loss, wanted = one_rank
    results = run_ranks(gradients, 2, LAYOUTS[name])
    losses = [loss for loss, _ in results]
    total = sum(losses) if name == "cp2" else losses[0]
    assert total == pytest.approx(wanted_loss, abs=1e-5)  # fp32, a loss of 4.6
    assert any("kv_down" in parameter for parameter in wanted)
    for number, (_, found) in enumerate(results):
        for parameter, (gradient, dimension) in found.items():
            whole = wanted[parameter][0]
            part = whole if dimension is None or name == "cp2" else whole.chunk(2, dimension)[number]
            error = (gradient - part).abs().max() / whole.abs().max()
            assert error < 3e-5, f"{parameter} is off by {error:.1e}"  # fp32 sums in another order


@pytest.mark.parametrize("module", ["core_attn", "mla_up_proj"])
def test_what_is_computed_again_is_the_same(module: str, one_rank: tuple[float, dict[str, Any]]) -> None:
    wanted_loss, wanted = one_rank
    [(loss, found)] = run_ranks(gradients, 1, {"recompute_granularity": "selective", "recompute_modules": [module]})
    assert loss == wanted_loss
    assert all(torch.equal(gradient, wanted[name][0]) for name, (gradient, _) in found.items())
    assert found.keys() == wanted.keys()


def test_up_projections_that_are_computed_again_take_no_memory() -> None:
    """Of queries, keys and values nothing is left when the forward pass is over, and all is there for the backward."""
    [(sizes, gradient)] = run_ranks(bytes_kept, 1)
    assert sizes == {"none": [64 * 4 * 24 * 4, 64 * 4 * 24 * 4, 64 * 4 * 12 * 4], "mla_up_proj": [0, 0, 0]}
    torch.testing.assert_close(gradient["mla_up_proj"], gradient["none"], rtol=0, atol=0)


def bytes_kept(rank: Rank) -> tuple[dict[str, list[int]], dict[str, torch.Tensor]]:
    """By what is computed again: of queries, keys and values of 64 tokens, and the gradient of what one layer got."""
    from megatron_core_portable import cpu_stands_in_for_cuda
    from slime.config.schema import Init, SlimeConfig
    from slime_megatron.train import megatron
    from slime_megatron.train.model.packed.sequences import PackedSequences

    cfg, sizes, gradient = SlimeConfig(), {}, {}
    cfg.model.init = Init.random
    megatron.initialize(cfg, *rank)
    selective = {"recompute_granularity": "selective", "recompute_modules": ["mla_up_proj"]}
    for name, settings in {"none": {}, "mla_up_proj": selective}.items():
        cfg.train.megatron = dict(settings)
        torch.manual_seed(0)
        model = megatron.build(cfg, LatentBridge(), {"vocab_size": VOCAB_SIZE, "max_position_embeddings": 128})
        attention = model.modules[0].decoder.layers[0].self_attention.train()
        torch.manual_seed(1)
        hidden = torch.randn(64, 1, 32, requires_grad=True)
        packed = PackedSequences.of([0, 24, 64], 1, 0, torch.device("cpu"))
        seen: list[torch.Tensor] = []
        attention.core_attention.register_forward_pre_hook(lambda _, given, seen=seen: seen.extend(given[:3]))
        with cpu_stands_in_for_cuda():
            output, _ = attention(hidden, None, packed_seq_params=packed)
            sizes[name] = [tensor.untyped_storage().nbytes() for tensor in seen]
            output.square().sum().backward()
        gradient[name] = hidden.grad
    return sizes, gradient
