import io
import json
import shutil
import subprocess
import sys

import pytest

from slime.data.tokenize import GENERIC, encode, end_tokens, load_tokenizer, render
from slime.errors import SlimeError


def test_prompt_text_and_tokens(tokenizer):
    text = render(tokenizer, [{"role": "user", "content": "1+2="}], "", {}, prompt=True)
    assert text == "[gMASK]<sop><|user|>\n1+2=<|assistant|>\n"
    ids = tokenizer.apply_chat_template(
        [{"role": "user", "content": "1+2="}], add_generation_prompt=True, return_dict=False
    )
    assert list(encode(tokenizer, [text, text])) == [ids, ids]


def test_more_texts_than_a_batch(tokenizer, monkeypatch):
    monkeypatch.setattr("slime.data.tokenize.BATCH", 2)
    texts = ["1", "22", "333", "4444", "55555"]
    assert [tokenizer.decode(ids) for ids in encode(tokenizer, texts)] == texts


def test_no_chat_template(tokenizer_folder, tmp_path):
    folder = shutil.copytree(tokenizer_folder, tmp_path / "bare", ignore=lambda *_: ["chat_template.jinja"])
    with pytest.raises(SlimeError, match="bare: the tokenizer has no chat template"):
        load_tokenizer(folder)


@pytest.mark.parametrize("content", [None, "not json"])
def test_no_loadable_tokenizer(tmp_path, content):
    if content:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(SlimeError, match="the tokenizer does not load") as caught:
        load_tokenizer(tmp_path)
    assert "\n" not in str(caught.value)


def test_code_of_a_checkpoint_is_not_run(tokenizer_folder, tmp_path, monkeypatch):
    """Left to itself, transformers asks on the terminal."""
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    folder = shutil.copytree(tokenizer_folder, tmp_path / "checkpoint")
    config = {"model_type": "unheard_of", "auto_map": {"AutoConfig": "configuration.Config"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "configuration.py").write_text("raise SystemExit('this was run')")
    assert load_tokenizer(folder).chat_template


@pytest.mark.slow
@pytest.mark.parametrize("named", [*GENERIC, "LlamaTokenizerFast", None])
def test_the_short_way_loads_what_transformers_would_choose(tokenizer_folder, tmp_path, named):
    """For every type of model that transformers has a tokenizer for, and one that it does not know."""
    from transformers import AutoTokenizer
    from transformers.models.auto.tokenization_auto import MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS as OVERRULED
    from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES

    folder = shutil.copytree(tokenizer_folder, tmp_path / "checkpoint")
    config = json.loads((folder / "tokenizer_config.json").read_text()) | {"tokenizer_class": named}
    (folder / "tokenizer_config.json").write_text(json.dumps({k: v for k, v in config.items() if v}))
    # The other two take the long way, whatever the model.
    known = {*TOKENIZER_MAPPING_NAMES, *OVERRULED, "unheard_of"} - {"musicgen", "musicgen_melody"}  # made of others
    for model_type in known if named in GENERIC else {"glm4"}:
        (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
        chosen = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        loaded = load_tokenizer(folder)
        assert type(loaded) is type(chosen), model_type
        assert loaded("1+2=")["input_ids"] == chosen("1+2=")["input_ids"]


def test_a_generic_tokenizer_is_loaded_without_models(tokenizer_folder):
    """They import torch's compiler, 2 s of the start of every run."""
    code = f"""
import sys
from pathlib import Path
from slime.data.tokenize import load_tokenizer
load_tokenizer(Path({str(tokenizer_folder)!r}))
print([name for name in ("torch._dynamo", "transformers.modeling_utils") if name in sys.modules])
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout == "[]\n"


def test_a_template_that_refuses_names_the_row(tokenizer, monkeypatch):
    monkeypatch.setattr(tokenizer, "chat_template", "{{ raise_exception('roles must alternate') }}")
    with pytest.raises(SlimeError, match="line 7: the chat template refuses the messages: roles must alternate"):
        render(tokenizer, [{"role": "user", "content": "1"}], "line 7", {}, prompt=True)


def test_a_template_that_stumbles_over_a_row_names_it(tokenizer, monkeypatch):
    monkeypatch.setattr(tokenizer, "chat_template", "{% for call in messages[0].tool_calls %}{{ call }}{% endfor %}")
    with pytest.raises(
        SlimeError, match="line 7: the chat template refuses the messages: 'int' object is not iterable"
    ):
        render(tokenizer, [{"role": "assistant", "content": "1", "tool_calls": 3}], "line 7", {}, prompt=True)


def test_template_keywords_reach_the_template(tokenizer, monkeypatch):
    monkeypatch.setattr(tokenizer, "chat_template", "{{ 'think' if enable_thinking else 'answer' }}")
    assert render(tokenizer, [{"role": "user", "content": "1"}], "", {"enable_thinking": True}, prompt=True) == "think"


def test_end_tokens_are_the_tokenizers_and_the_checkpoints(tokenizer_folder, tmp_path):
    folder = shutil.copytree(tokenizer_folder, tmp_path / "several")
    (folder / "generation_config.json").write_text('{"eos_token_id": [0, 5]}')
    assert end_tokens(load_tokenizer(folder)) == {0, 5}
    assert end_tokens(load_tokenizer(tokenizer_folder)) == {0}
