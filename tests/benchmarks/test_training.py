"""The training benchmark's arithmetic, and that it runs on a CPU."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from slime import plugins
from slime.compose.compose import compose
from slime.config.hf import read_hf_config
from slime_testing.patience import run_within

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def rows(*arguments: str) -> list[list[str]]:
    """The cells of the table that a benchmark prints."""
    command = [sys.executable, "-W", "ignore", *arguments]
    printed = run_within(110, command, cwd=BENCHMARKS)
    table = [line.split("|")[1:-1] for line in printed.stdout.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line] for line in table[2:]]


@pytest.mark.slow
def test_the_tiny_model_trains() -> None:
    (row,) = rows("train.py", "--device", "cpu", "--tiny", "--only", "0", "--micro-batches", "2")
    pack, sequence, _, _, _, _, seconds, rate, *_ = row
    assert (pack, sequence) == ("256", "64")
    assert float(rate.replace(",", "")) == pytest.approx(2 * 256 / float(seconds), rel=0.02)


@pytest.mark.slow
def test_tokens_count_alike_where_a_prompt_is_computed_once() -> None:
    (row,) = rows("train.py", "--device", "cpu", "--tiny", "--only", "3", "--micro-batches", "2")
    assert row[2] == "40, once"
    assert float(row[7].replace(",", "")) == pytest.approx(2 * 512 / float(row[6]), rel=0.02)
    assert row[8] == "-"


@pytest.mark.slow
def test_layouts_of_two_ranks_need_the_same_flops() -> None:
    """What the table has a rank do a second, times what it takes: of a model cut by tensors, by layers, or of halves of
    the tokens each."""
    table = rows("train.py", "--device", "cpu", "--gpus", "2", "--tiny", "--micro-batches", "2")
    tensor, pipeline, data = (float(row[6]) * float(row[8]) for row in table)
    assert [row[3] for row in table] == ["TP 2, PP 1", "TP 1, PP 2", "TP 1, PP 1"]
    assert tensor == pytest.approx(pipeline, rel=0.02)
    assert data == pytest.approx(2 * tensor, rel=0.02)  # it has as many packs for each of its ranks


@pytest.mark.slow
def test_experts_over_ranks_need_the_flops_of_the_same_experts_on_each() -> None:
    table = rows("train.py", "--device", "cpu", "--gpus", "4", "--tiny", "--micro-batches", "2")
    over, alone = (float(row[6]) * float(row[8]) for row in table[:2])
    assert [row[3] for row in table[:2]] == ["TP 1, PP 1, EP 4", "TP 1, PP 1"]
    assert over == pytest.approx(alone, rel=0.02)
    assert [(row[2], row[8] == "-") for row in table[2:]] == [("40, each", False), ("40, once", True)]


def test_the_cut_of_glm52_has_its_widths_and_kinds_of_layers(tmp_path: Path) -> None:
    from train_models import DATA, SPARSE, arguments_of

    cfg = compose([*arguments_of(SPARSE, 1, str(tmp_path)), "+cluster=h200x1", *DATA])
    cut, whole = read_hf_config(cfg.model.path), read_hf_config("pkg://slime_plugin_glm5/assets/GLM-5.2")
    others = {key for key in whole if cut.get(key) != whole[key]}
    assert others == {
        *("num_hidden_layers", "first_k_dense_replace", "n_routed_experts", "num_nextn_predict_layers"),
        *("mlp_layer_types", "indexer_types", "index_topk_pattern"),
    }
    keywords = plugins.load().models.create(cut["model_type"]).transformer_config(cut)
    assert list(keywords["moe_layer_freq"]) == [0, 1, 1]


def test_five_ways_to_logprobs_agree() -> None:
    table = rows("logprob.py", "--device", "cpu", "--tiny")
    assert [(row[0], row[1]) for row in table] == [
        (num_tokens, way) for num_tokens in ("64", "256") for way in ("plain", "chunked", "kept", "fp32", "fused")
    ]
    errors = {row[1]: [float(cell) for cell in row[4:]] for row in table[:5]}
    assert min(min(cells) for cells in errors.values()) > 0
    assert max(max(cells) for cells in errors.values()) < 2e-2  # bf16
    assert max(errors["fp32"][:2]) < 1e-5
