"""What a version must write into an engine's model."""

from __future__ import annotations

import torch

from slime_sglang.engine import hooks
from slime_sglang.engine.hooks import _own_parameters, keep_number, unset_scales


def test_scales_of_a_cache_are_one_after_dummy_weights() -> None:
    """SGLang draws its dummy weights for them too: near 0, by which a cache in FP8 would lose every value."""
    from sglang.srt.layers.quantization.fp8 import Fp8Config
    from sglang.srt.layers.quantization.kv_cache import BaseKVCacheMethod

    layer = torch.nn.Module()
    method = BaseKVCacheMethod(Fp8Config(is_checkpoint_fp8_serialized=True, weight_block_size=[128, 128]))
    method.create_weights(layer)
    for scale in layer.parameters():
        scale.fill_(3e-4)
    unset_scales(method, layer)
    method.process_weights_after_loading(layer)
    assert [scale.item() for scale in layer.parameters()] == [1, 1]
    assert (layer.k_scale_float, layer.v_scale_float) == (1, 1)
    assert not list(_own_parameters(layer)), "no version brings them"


def test_notes_of_versions_do_not_pile_up() -> None:
    """SGLang keeps a note of each change of its settings, and each publish changes the version twice."""
    from sglang.srt.server_args import ServerArgs

    ours, theirs = (object.__new__(ServerArgs) for _ in range(2))
    for version in range(3):
        for source in (hooks.__name__, "tokenizer.weight_version"):
            keep_number(ServerArgs.override, ours, source, weight_version=str(version))
            theirs.override(source, weight_version=str(version))
        keep_number(ServerArgs.override, ours, "others", host=f"host-{version}")
    assert len(theirs._runtime_mutations) == 6, "SGLang keeps them no more: keep_number need not forget them"
    hosts = [("others", {"host": f"host-{version}"}) for version in range(3)]
    last = ("tokenizer.weight_version", {"weight_version": "2"})
    assert ours._runtime_mutations == [*hosts[:2], last, hosts[2]]
    assert (ours.weight_version, ours.host) == ("2", "host-2")
