"""Which tensors share a bucket, and what becomes of its memory."""

import gc
import os

from weight_buckets.bucket import SharedBucket, in_buckets, loaded_together


def runs(*names: str) -> list[list[str]]:
    return list(loaded_together(names, name=str))


def test_down_projections_of_a_layer_stay_together() -> None:
    of_layer = [
        [f"model.layers.{layer}.self_attn.{x}.weight" for x in ("q_a_proj", "kv_a_proj_with_mqa")] for layer in (0, 1)
    ]
    norm = "model.layers.0.input_layernorm.weight"
    assert runs(norm, *of_layer[0], *of_layer[1]) == [[norm], *of_layer]


def test_buckets_are_filled_and_runs_are_not_cut() -> None:
    runs = [[3], [4], [2, 2], [9], [1], [5]]
    assert list(in_buckets(runs, 7, num_bytes=sum)) == [[3, 4], [2, 2], [9], [1, 5]]
    assert list(in_buckets([], 7, num_bytes=sum)) == []


def test_shared_memory_is_given_back_with_the_bucket_left_or_not() -> None:
    with SharedBucket(100) as left:
        open_files = [left._descriptor, (dropped := SharedBucket(100))._descriptor]
        assert all("slime-bucket" in os.readlink(f"/proc/self/fd/{file}") for file in open_files)
    del dropped
    gc.collect()
    for file in open_files:
        assert not os.path.exists(f"/proc/self/fd/{file}") or "bucket" not in os.readlink(f"/proc/self/fd/{file}")
