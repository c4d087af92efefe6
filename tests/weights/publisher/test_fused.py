"""Which tensors share a bucket whatever its size."""

import torch

from slime.weights.megatron.blocks import mla
from slime.weights.publisher.fused import in_one_bucket


def runs(*names: str) -> list[list[str]]:
    return [[name for name, _ in run] for run in in_one_bucket((name, torch.zeros(1)) for name in names)]


def test_down_projections_of_a_layer_stay_together() -> None:
    of_layer = [
        [f"model.layers.{layer}.self_attn.{x}.weight" for x in ("q_a_proj", "kv_a_proj_with_mqa")] for layer in (0, 1)
    ]
    norm = "model.layers.0.input_layernorm.weight"
    assert runs(norm, *of_layer[0], *of_layer[1]) == [[norm], *of_layer]


def test_a_mapping_exports_them_behind_one_another() -> None:
    names = [name.format(layer=0) for rule in mla() for name in rule.hf]
    assert [len(run) for run in runs(*names)] == [2, 1, 1, 1, 1, 1]
    assert [len(run) for run in runs(*(name.format(layer=0) for rule in mla(q_lora=False) for name in rule.hf))] == [
        1
    ] * 5
