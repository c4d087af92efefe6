"""Several prompt sets in one stream: their shares, ids and columns, and a resume."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from slime.config.schema import DataConfig, Repeated, TrainSetConfig
from slime.data.mix import PromptMix
from slime.data.prompts import PromptSource
from slime.errors import SlimeError


def rows(path: Path, count: int, **columns: str) -> str:
    names = {"prompt": "prompt", "label": "label"} | columns
    path.write_text(
        "".join(json.dumps({names["prompt"]: f"{n}+1=", names["label"]: str(n)}) + "\n" for n in range(count))
    )
    return str(path)


def mixed(folder: Path, tokenizer: Any, **changes: Any) -> PromptMix:
    """Two rows of the first set for each of `twice`, and one of `other`, whose columns have other names."""
    own: dict[str, Any] = {"prompt_key": "prompt", "label_key": "label", "system_prompt": None}
    other = rows(folder / "other.jsonl", 3, prompt="question", label="answer")
    sets = {
        "twice": TrainSetConfig(rows(folder / "twice.jsonl", 5), **own, share=1.0),
        "other": TrainSetConfig(
            other, prompt_key="question", label_key="answer", system_prompt="Add.", share=0.5, reward="f1"
        ),
    }
    data = DataConfig(path=rows(folder / "main.jsonl", 4), sets=sets, share=2.0, **changes)
    return PromptMix(data, tokenizer, seed=1, max_prompt_tokens=64)


def test_each_set_has_its_share_of_every_few_prompts(tmp_path: Path, tokenizer: Any) -> None:
    taken = mixed(tmp_path, tokenizer).take(70)
    for start in range(0, 70, 7):
        assert Counter(prompt.set for prompt in taken[start : start + 7]) == {"": 4, "twice": 2, "other": 1}
    assert len({prompt.id for prompt in taken}) == 70


def test_ids_and_rows_are_those_of_the_set(tmp_path: Path, tokenizer: Any) -> None:
    taken = mixed(tmp_path, tokenizer, shuffle=False).take(7)
    (other,) = [prompt for prompt in taken if prompt.set == "other"]
    assert other.id == "other/0/1"
    assert [message["content"] for message in other.messages] == ["Add.", "0+1="]
    assert other.label == "0"
    assert [prompt.id for prompt in taken if not prompt.set] == ["0/1", "0/2", "0/3", "0/4"]


def test_rows_of_every_set_are_taken_once(tmp_path: Path, tokenizer: Any) -> None:
    twice = rows(tmp_path / "main.jsonl", 4)
    Path(twice).write_text(2 * Path(twice).read_text())
    sets = {"again": TrainSetConfig(twice, prompt_key="prompt", label_key="label", system_prompt=None, share=1.0)}
    data = DataConfig(path=twice, sets=sets, repeated=Repeated.once)
    assert len(PromptMix(data, tokenizer, seed=1, max_prompt_tokens=64)) == 8


def test_a_resume_keeps_the_position_of_every_set(tmp_path: Path, tokenizer: Any) -> None:
    whole = mixed(tmp_path, tokenizer).take(40)
    first, second = mixed(tmp_path, tokenizer), mixed(tmp_path, tokenizer)
    begun = first.take(17)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert [*begun, *second.take(23)] == whole


def test_another_file_of_a_set_is_refused_at_a_resume(tmp_path: Path, tokenizer: Any) -> None:
    state = mixed(tmp_path, tokenizer).state_dict()
    changed = mixed(tmp_path, tokenizer)
    state["sets"]["other"]["content_hash"] = "another"
    with pytest.raises(SlimeError, match=r"other.jsonl: the file changed since the checkpoint was taken"):
        changed.load_state_dict(state)


def test_one_set_is_what_it_is_alone(tmp_path: Path, tokenizer: Any) -> None:
    data = DataConfig(path=rows(tmp_path / "main.jsonl", 4))
    alone, mix = (made(data, tokenizer, 1, 64) for made in (PromptSource, PromptMix))
    assert alone.take(9) == mix.take(9)
    assert alone.state_dict() == mix.state_dict()


def test_a_system_message_of_the_row_and_one_of_the_config_are_one_too_many(tmp_path: Path, tokenizer: Any) -> None:
    path = tmp_path / "rows.jsonl"
    messages = [{"role": "system", "content": "x"}, {"role": "user", "content": "1+1="}]
    path.write_text(json.dumps({"prompt": messages, "label": "2"}) + "\n")
    with pytest.raises(SlimeError, match=r"rows.jsonl line 1: the prompt has a system message of its own"):
        PromptMix(DataConfig(path=str(path), system_prompt="Add."), tokenizer, 1, 64)
