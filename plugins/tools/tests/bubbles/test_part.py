"""What a plan says of waiting, and what it loads for that."""

from __future__ import annotations

import subprocess
import sys

import pytest

from slime import plugins
from slime.compose.compose import examine
from slime.config.hf import config_folder, read_hf_config
from slime.plan.document import document
from slime.plan.flops import attention
from slime.plan.report import report
from slime.sizes.model import keywords_of, sizes_of
from slime_tools.bubbles.part import TITLE, shape_of

LAPTOP = ("+model=glm4-tiny", "+cluster=local")


def lines(*words: str) -> list[str]:
    """Of the plan's text."""
    text = report(examine(words), plugins.load())
    [found] = [block for block in text.split("\n\n") if block.startswith(TITLE)] or [""]
    return found.splitlines()[1:]


def test_a_pipeline_without_data_parallelism() -> None:
    [line] = lines("+model=glm5.2", "+cluster=h100x256")
    assert line.startswith("  pipeline        17.")
    assert line.endswith(" of a step's passes, on the way of 35.0 micro-batches through 8 stages")


def test_ranks_that_share_experts() -> None:
    [line] = lines("+model=glm4.7-flash", "+cluster=h100x8")
    assert line.endswith(" of a step's passes, at each micro-batch for the largest of 8 ranks that share experts")


def test_ranks_and_stages() -> None:
    words = ("train.megatron.pipeline_model_parallel_size=2", "train.megatron.context_parallel_size=1")
    [ranks, pipeline] = lines("+model=glm4-9b", "+cluster=h100x8", *words)
    assert ranks.endswith(" at its end for the busiest of 2 ranks")
    assert pipeline.endswith(" micro-batches through 2 stages")


def test_the_document_has_the_numbers_of_the_text() -> None:
    words = ("+model=glm5.2", "+cluster=h100x256")
    told = document(examine(words), plugins.load())["bubbles"]
    assert [*told] == ["micro_batches", "full", "ranks", "pipeline"]
    assert told["ranks"] == 0
    assert f"{told['pipeline']:6.1%} " in lines(*words)[0]
    assert 7 / (told["micro_batches"] + 7) < told["pipeline"] < 1.3 * 7 / (told["micro_batches"] + 7)


def test_one_rank_waits_for_nobody_and_its_plan_loads_no_numpy() -> None:
    assert lines(*LAPTOP) == []
    program = f"import sys; from slime.__main__ import main; main(['plan', *{LAPTOP}]); print('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("\nFalse\n")


@pytest.mark.parametrize(("model", "cluster"), [("glm4.7-flash", "h100x8"), ("glm5.2", "h100x256")])
def test_work_is_counted_as_trainers_count_it(model: str, cluster: str) -> None:
    """By the same `RankLayout.attention`."""
    composed = examine([f"+model={model}", f"+cluster={cluster}"])
    cfg, topology, bridge = composed.cfg, composed.topology, plugins.load().models.create(composed.cfg.model.family)
    assert topology
    cfg.model.path = config_folder(cfg.model)
    hf = read_hf_config(cfg.model.path, cfg.model.num_layers)
    sizes = sizes_of(topology, keywords_of(cfg.train.megatron, bridge, hf), bridge.weight_mapping(hf))
    shape = shape_of(sizes, 1, are_pairs=False)
    assert shape.attention == attention(cfg.model, cfg.train.megatron, plugins.load())
    assert (shape.num_dp, shape.align, shape.multiple) == (topology.grid.dp, topology.grid.packing_align, 1)
    assert shape_of(sizes, 2, are_pairs=False).multiple == topology.grid.pp
