import io
import json
import resource
import shutil
import signal
import subprocess
import sys

import pytest
from transformers import PreTrainedTokenizerFast

from slime.data.tokenize import GENERIC, decode, encode, end_tokens, load_tokenizer, render
from slime.errors import SlimeError
from tests.resident import MIB, growth


def test_prompt_text_and_tokens(tokenizer):
    text = render(tokenizer, [{"role": "user", "content": "1+2="}], "", {}, prompt=True)
    assert text == "[gMASK]<sop><|user|>\n1+2=<|assistant|>\n"
    ids = tokenizer.apply_chat_template(
        [{"role": "user", "content": "1+2="}], add_generation_prompt=True, return_dict=False
    )
    assert list(encode(tokenizer, [text, text])) == [ids, ids]


TEXTS = ["", "1+2=", "<|user|>\n1 <|endoftext|>", "é𝄞\x00\n\n  a\t", " ".join(map(str, range(2000)))]


class _OfItsOwn(PreTrainedTokenizerFast):
    """Has something to do around the library."""

    def _decode(self, token_ids, **kwargs):
        return super()._decode(token_ids, **kwargs).upper()


@pytest.mark.parametrize("splits", [False, True])
@pytest.mark.parametrize("kind", [PreTrainedTokenizerFast, _OfItsOwn])
def test_tokens_and_texts_are_those_of_transformers(tokenizer_folder, kind, splits):
    asked, right = (kind.from_pretrained(tokenizer_folder, split_special_tokens=splits) for _ in range(2))
    asked.backend_tokenizer.enable_truncation(3)  # as a checkpoint's file may say
    asked.backend_tokenizer.enable_padding()
    ids = right(TEXTS, add_special_tokens=False)["input_ids"]
    assert list(encode(asked, TEXTS)) == ids
    for special in (True, False):
        texts = [right.decode(each, skip_special_tokens=not special) for each in ids]
        assert [decode(asked, each, special=special) for each in ids] == texts


def test_more_texts_than_a_batch(tokenizer, monkeypatch):
    monkeypatch.setattr("slime.data.tokenize.BATCH", 610)  # of two short texts
    texts = ["1", "22", "333", "4444" * 1000, "55555"]
    assert [tokenizer.decode(ids) for ids in encode(tokenizer, texts)] == texts


def test_long_texts_are_encoded_a_few_at_once(tokenizer):
    """All 200 at once take 400 MB."""

    def run():
        for ids in encode(tokenizer, ["1" * 20_000] * 200):
            assert len(ids) == 20_000

    for _ in encode(tokenizer, ["1"]):  # loads what the first call loads
        pass
    assert growth(run) < 200 * MIB


def test_no_chat_template(tokenizer_folder, tmp_path):
    folder = shutil.copytree(tokenizer_folder, tmp_path / "bare", ignore=lambda *_: ["chat_template.jinja"])
    with pytest.raises(SlimeError, match="bare: the tokenizer has no chat template"):
        load_tokenizer(folder)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "there is no tokenizer: neither tokenizer.json nor another vocabulary"),
        ("not json", "tokenizer.json: is torn: it does not end as JSON does"),
        ("{}", "the tokenizer does not load: "),
        ('{"version": 1, "model": }', "the tokenizer does not load: "),
    ],
)
def test_no_loadable_tokenizer(tmp_path, content, said):
    (tmp_path / "chat_template.jinja").touch()
    if content:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(SlimeError, match=said) as caught:
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


def test_a_generic_tokenizer_is_loaded_without_models_and_torch(tokenizer_folder):
    """They import torch's compiler, 3 s of the start of every run. A GGUF file would be read by transformers."""
    code = f"""
import sys
from pathlib import Path
from slime.data.tokenize import load_tokenizer
load_tokenizer(Path({str(tokenizer_folder)!r}))
print([name for name in ("torch", "transformers.modeling_utils") if name in sys.modules])
from transformers.tokenization_utils_tokenizers import load_gguf_checkpoint
try:
    load_gguf_checkpoint("nowhere.gguf")
except (FileNotFoundError, ImportError) as error:
    print(error.__traceback__.tb_next.tb_next.tb_frame.f_globals["__name__"])
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout == "[]\ntransformers.modeling_gguf_pytorch_utils\n"


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


ENDLESS = {
    "a long range": "{% for i in range(10**12) %}{{ i }}{% endfor %}",
    "loops in loops": "{% for i in range(90000) %}{% for j in range(90000) %}{% endfor %}{% endfor %}",
    "much text": "{{ 'x' * 10**10 }}",
    "text that doubles": "{% set n = namespace(s='xx') %}{% for i in range(60) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
    "itself": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
}


@pytest.mark.parametrize("template", ENDLESS.values(), ids=ENDLESS)
def test_a_template_without_an_end_is_one_line(tokenizer_folder, template, monkeypatch):
    monkeypatch.setattr("slime.data.tokenize.RENDER_S", 1.0)
    tokenizer = load_tokenizer(tokenizer_folder)
    tokenizer.chat_template = template
    limits = resource.getrlimit(resource.RLIMIT_AS), signal.getsignal(signal.SIGVTALRM)
    with pytest.raises(SlimeError, match=r"^line 3: the chat template cannot be used: .*Use a checkpoint") as caught:
        render(tokenizer, [{"role": "user", "content": "1+2="}], "line 3", {}, prompt=True)
    assert "\n" not in str(caught.value)
    assert limits == (resource.getrlimit(resource.RLIMIT_AS), signal.getsignal(signal.SIGVTALRM))


@pytest.mark.parametrize(
    "template", ["{{ 1 / 0 }}", "{{ '{}'.format() }}", "{{ '%d' | format('x') }}", "{{ 'a'.index('b') }}"]
)
def test_a_template_that_fails_is_one_line(tokenizer_folder, template):
    tokenizer = load_tokenizer(tokenizer_folder)
    tokenizer.chat_template = template
    with pytest.raises(SlimeError, match=r"^line 3: the chat template refuses the messages: "):
        render(tokenizer, [{"role": "user", "content": "1+2="}], "line 3", {}, prompt=True)
