import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from slime.compose.compose import compose, examine
from slime.errors import SlimeError
from slime_testing.objectives import check_objective

TINY = "pkg://slime_plugin_glm4/assets/glm4-tiny"
DEMO = ["+model=glm4-tiny", "+cluster=local"]
SUPERVISED = [*DEMO, "algo.name=weighted_sft", "run.num_steps=0", "data.path=${sft.path}"]
SUPERVISED += ["sft.num_steps=1", "sft.lr_warmup_steps=0", "eval.path=null"]
ANSWERS = ["46", "7", "128"]
ROWS = [
    {"weight": 0.5},
    {"weight": [2, 0.25]},
    {"weight": -1.5, "note": "a weight may be below 0, and other columns are anything"},
]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["weighted_sft", "weighted_reinforce"])
def test_contract(name: str) -> None:
    check_objective(name, TINY, options={"column": "difficulty"})


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """Demonstrations whose answers are one token for each digit, and the token that ends them."""
    file = tmp_path / "rows.jsonl"
    turns = [[{"role": "user", "content": "say"}, {"role": "assistant", "content": answer}] for answer in ANSWERS]
    lines = [json.dumps({"messages": messages, **row}) for messages, row in zip(turns, ROWS, strict=True)]
    file.write_text("\n".join(lines) + "\n")
    return file


@pytest.mark.slow
def test_a_run_weighs_each_token_of_its_rows(rows: Path, tmp_path: Path) -> None:
    """At this learning rate weights move by 1e-12, so the export is the model that the loss is of. float64 of the same
    formula with transformers' class of the model: fp32 is off by some 1e-7 of each log-prob."""
    words = [each.replace("cluster=local", "cluster=local2") for each in SUPERVISED]
    words += [f"sft.path={rows}", "sft.batch_size=3", "sft.lr=1e-12", "train.max_tokens_per_micro_batch=32"]
    words += [f"run.dir={tmp_path}", "run.name=it"]
    done = subprocess.run([sys.executable, "-m", "slime", *words], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    [row] = [json.loads(line) for line in (tmp_path / "it/metrics.jsonl").read_text().splitlines()]
    losses, weights = _by_token(tmp_path / "it/export", rows)
    assert weights.tolist() == [0.5, 0.5, 0.5, 2, 0.25, -1.5, -1.5, -1.5, -1.5]
    assert abs(row["train/loss"] - (weights * losses).mean()) < 2e-6
    assert abs(losses.mean() - (weights * losses).mean()) > 0.1  # without weights it would be another number
    assert abs(row["train/weight"] - weights.mean()) < 1e-6


def _by_token(model: Path, rows: Path) -> tuple[np.ndarray, np.ndarray]:
    """-log pi of each token of the answers, by transformers in float64, and its weight."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(model)
    policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float64)
    losses, weights = [], []
    for row in map(json.loads, rows.read_text().splitlines()):
        prompt = tokenizer.apply_chat_template(row["messages"][:1], add_generation_prompt=True, tokenize=False)
        answer = [*tokenizer.encode(row["messages"][1]["content"], add_special_tokens=False), tokenizer.eos_token_id]
        before = tokenizer.encode(prompt, add_special_tokens=False)
        ids = torch.tensor([[*before, *answer]])
        with torch.no_grad():
            logprobs = policy(ids).logits[0, len(before) - 1 : -1].log_softmax(-1)
        losses += (-logprobs[range(len(answer)), answer]).tolist()
        weights += row["weight"] if isinstance(row["weight"], list) else [row["weight"]] * len(answer)
    return np.array(losses), np.array(weights)


@pytest.mark.parametrize(
    ("column", "told"),
    [
        (
            "weihgt",
            "rows.jsonl line 1: the row has no column 'weihgt', which the objective reads. Did you mean 'weight'?",
        ),
        ("note", "rows.jsonl line 1: the row has no column 'note', which the objective reads. Choose one of: weight."),
    ],
)
def test_a_column_that_a_row_lacks_is_refused_before_anything_starts(rows: Path, column: str, told: str) -> None:
    words = [*SUPERVISED, f"sft.path={rows}"]
    assert not examine(words).problems
    [problem] = examine([*words, f"algo.options.column={column}"]).problems
    assert told in str(problem)


def test_the_column_of_prompts_is_looked_for_too(tmp_path: Path) -> None:
    """The arithmetic task has no weights."""
    words = [*DEMO, "algo=weighted_reinforce"]
    [problem] = examine(words).problems
    assert "line 1: the row has no column 'weight', which the objective reads" in str(problem)
    given = tmp_path / "prompts.jsonl"
    given.write_text(json.dumps({"prompt": "1+1=", "label": "2", "weight": 0.5}) + "\n")
    assert compose([*words, f"data.path={given}"]).algo.options == {"column": "weight"}
    with pytest.raises(SlimeError, match=r"algo\.options\.column: .*It takes str"):
        compose([*words, "algo.options.column=[1]"])
