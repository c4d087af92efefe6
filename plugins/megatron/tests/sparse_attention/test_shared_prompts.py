"""Where samples share rows, queries choose among their keys and those of their own: as in whole sequences."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from slime.layout import Grid
from slime.models.blocks import RankTokens
from slime_megatron.sparse_attention import BLOCK
from slime_megatron.sparse_attention.indexer import IndexQueries, select_keys
from slime_megatron.sparse_attention.split import Split
from slime_megatron.train.model.packed.context_parallel import runs_of_rank, slice_rows
from slime_testing.models import write_checkpoint
from slime_testing.ranks import run_ranks
from slime_testing.sharing import compare_shared, train_both

CONFIGS = Path(__file__).parents[3] / "models"
TP, PP, EP = (f"{kind}_model_parallel_size" for kind in ("tensor", "pipeline", "expert"))
FULL = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
ONE_RANK: Mapping[str, Any] = {"one rank": {}, "full recomputation": FULL}
TWO_RANKS: Mapping[str, Any] = {"tp2 ep2": {TP: 2, EP: 2}, "pp2": {PP: 2}}
LEARNS = "train.megatron.dsa_indexer_loss_coeff"

OWN = [12, 4, 8, 9, 3]
PREFIXES = [(), (range(7),), (range(7), range(12, 15)), (range(7), range(12, 15), range(16, 18)), (range(5),)]
"""Rows of five sequences: three begin with 7 tokens of the first, two of these with 3 of the second, one with 2 of the
third; the last with 5 of the first."""
BORDERS = [0, *accumulate(OWN)]


def whole_rows() -> list[list[int]]:
    """By sequence, the rows of all its tokens."""
    return [
        [*(row for rows in before for row in rows), *range(start, start + own)]
        for start, own, before in zip(BORDERS, OWN, PREFIXES, strict=False)
    ]


@pytest.mark.parametrize("num_shards", [1, 2])
@pytest.mark.parametrize("topk", [1, 5, 9, 20])
def test_a_query_gets_the_keys_that_it_gets_in_a_whole_sequence(topk: int, num_shards: int) -> None:
    """16 index heads make no ties. Each sequence is put together and sorted by itself."""
    generator = torch.Generator().manual_seed(0)
    vectors, weights, keys = (
        torch.randn(*shape, generator=generator, dtype=torch.float64)
        for shape in ((BORDERS[-1], 16, 4), (BORDERS[-1], 16), (BORDERS[-1], 4))
    )
    wanted: dict[int, set[int]] = {}
    for rows, own in zip(whole_rows(), OWN, strict=True):
        scores = torch.einsum(
            "tn,tnm->tm", weights[rows], torch.einsum("tnd,md->tnm", vectors[rows], keys[rows]).relu()
        )
        for place in range(len(rows) - own, len(rows)):
            best = scores[place, : place + 1].argsort(descending=True)[:topk]
            wanted[rows[place]] = {rows[each] for each in best}
    runs = runs_of_rank(BORDERS, 1, 0, prefixes=PREFIXES)
    size, selected = BORDERS[-1] // num_shards, list[Tensor]()
    for shard in range(num_shards):
        part = slice(shard * size, (shard + 1) * size)
        queries = IndexQueries(vectors[part], weights[part].float())
        selected.append(select_keys(queries, keys, slice_rows(runs, part.start, part.stop), topk))
    found = [{row for row in rows if row >= 0} for rows in torch.cat(selected).tolist()]
    assert found == [wanted[row] for row in range(BORDERS[-1])]


def test_runs_know_the_rows_that_their_tokens_see() -> None:
    runs = runs_of_rank(BORDERS, 1, 0, prefixes=PREFIXES)
    assert [run.seen().tolist() for run in runs] == whole_rows()
    assert runs[2].slice(1, 3).seen().tolist() == [*range(7), 12, 13, 14, 16, 17, 18]
    assert np.array([[run.num_before, run.num_seen] for run in runs]).T.tolist() == [
        [0, 7, 10, 12, 5],
        [12, 11, 18, 21, 8],
    ]


def test_the_plan_counts_the_keys_that_samples_read_of_their_prompt() -> None:
    """What attention to all keys gathers of the prompt, of two heads of 5 + 2 and 3, in bf16."""
    split = Split.of(runs_of_rank(BORDERS, 1, 0, prefixes=PREFIXES), 21, 1, 0, torch.device("cpu"))
    more = len(split.dense_keys) - BORDERS[-1]
    assert more == 7 + 10 + 12 + 5
    sizes = {"qk_head_dim": 5, "qk_pos_emb_head_dim": 2, "v_head_dim": 3, "kv_lora_rank": 6, "q_lora_rank": 4}
    sizes["dsa_indexer_topk"] = 8
    whole, shared = (
        BLOCK.saved(RankTokens({"num_attention_heads": 2, **sizes}, Grid(world_size=1), BORDERS[-1], 21, keys))
        for keys in (1.0, len(split.dense_keys) / BORDERS[-1])
    )
    assert shared.kept - whole.kept == pytest.approx(2 * more * 2 * (5 + 2 + 3))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "num_ranks", "layouts", "coefficient"),
    [
        ("deepseek-v3/tests/configs/sparse.json", 1, ONE_RANK, None),
        ("glm5/tests/configs/dsa.json", 1, ONE_RANK, 0.2),  # with layers that attend to what others chose
        ("glm5/tests/configs/dsa.json", 2, TWO_RANKS, 0.2),
    ],
)
def test_a_step_is_that_of_whole_sequences(
    config: str, num_ranks: int, layouts: Mapping[str, Any], coefficient: float | None, tmp_path: Path
) -> None:
    """Sequences of 8 to 40 tokens and longer histories choose 8 keys: some queries see fewer, also behind a prompt."""
    write_checkpoint(json.loads((CONFIGS / config).read_text()), tmp_path)
    results = run_ranks(train_both, num_ranks, tmp_path, layouts, {LEARNS: coefficient}, timeout_s=200)
    for layout in layouts:
        compare_shared(layout, [result[layout] for result in results])
        assert ("indexer_loss" in results[0][layout][0].metrics) == bool(coefficient)
