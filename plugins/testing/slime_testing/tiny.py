"""Writes what a Hugging Face checkpoint of a tiny model holds, less the weights: config, tokenizer, chat template.

Model plugins make their laptop models with this: the architecture is the family's real one, only small, so whatever
trains or serves it trains or serves its big sisters by the same code. Weights are drawn at random when a run starts.

The tokenizer works on characters: each printable ASCII character, newline and tab is a token, all else is `<unk>`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# An answer ends with <|endoftext|>, which also pads; [gMASK]<sop> opens every conversation.
PAD, UNKNOWN = "<|endoftext|>", "<unk>"
SPECIALS = [PAD, UNKNOWN, "[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"]
CHARACTERS = ["\t", "\n", *map(chr, range(ord(" "), ord("~") + 1))]
TOKENS = SPECIALS + CHARACTERS
VOCAB_SIZE = 128  # 105 tokens, rounded up to a multiple of 128 as tensor parallelism wants it
MAX_TOKENS = 512

CHAT_TEMPLATE = """\
[gMASK]<sop>
{%- for message in messages -%}
<|{{ message.role }}|>{{ "\\n" }}{{ message.content }}
{%- if message.role == "assistant" %}<|endoftext|>{% endif %}
{%- endfor -%}
{%- if add_generation_prompt %}<|assistant|>{{ "\\n" }}{% endif -%}
"""

DECODER: dict[str, Any] = {
    "attention_bias": False,
    "attention_dropout": 0.0,
    "dtype": "float32",
    "eos_token_id": TOKENS.index(PAD),
    "hidden_act": "silu",
    "hidden_size": 128,
    "initializer_range": 0.08,  # about 1 / sqrt(hidden_size); the 0.02 of wide models learns more slowly here
    "intermediate_size": 384,
    "max_position_embeddings": MAX_TOKENS,
    "num_attention_heads": 8,  # many small heads pick out single digits: twice as fast to learn as 4 wide ones
    "num_hidden_layers": 4,
    "pad_token_id": TOKENS.index(PAD),
    "tie_word_embeddings": False,
    "use_cache": True,
    "vocab_size": VOCAB_SIZE,
}
"""Fields that the config.json of every tiny decoder shares."""

SPARSE_DECODER: dict[str, Any] = DECODER | {
    "hidden_size": 256,  # 128 learns more slowly beside latents of 512
    "index_head_dim": 128,
    "index_topk": 2048,
    "initializer_range": 0.06,  # about 1 / sqrt(hidden_size)
    "intermediate_size": 768,
    "kv_lora_rank": 512,
    "q_lora_rank": 128,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}
"""The same of one with sparse attention. SGLang's kernels know one head size of the indexer, one size of a latent with
its rotary part, and one number of keys to choose while prefilling: those of the published models. Sequences of the
arithmetic run are shorter than that number, so every query attends to all keys."""

GENERATION_CONFIG = {
    "do_sample": True,
    "eos_token_id": TOKENS.index(PAD),
    "pad_token_id": TOKENS.index(PAD),
    "temperature": 1.0,
}

# A BPE model without merges splits text into its characters; `Fuse` joins them again without adding spaces.
TOKENIZER: dict[str, Any] = {
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "added_tokens": [
        {
            "id": token_id,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for token_id, token in enumerate(SPECIALS)
    ],
    "normalizer": None,
    "pre_tokenizer": None,
    "post_processor": None,
    "decoder": {"type": "Fuse"},
    "model": {
        "type": "BPE",
        "dropout": None,
        "unk_token": UNKNOWN,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": {token: token_id for token_id, token in enumerate(TOKENS)},
        "merges": [],
    },
}

TOKENIZER_CONFIG = {
    "clean_up_tokenization_spaces": False,
    "eos_token": PAD,
    "extra_special_tokens": [token for token in SPECIALS if token not in (PAD, UNKNOWN)],
    "model_max_length": MAX_TOKENS,
    "pad_token": PAD,
    "padding_side": "left",
    "tokenizer_class": "PreTrainedTokenizerFast",
    "unk_token": UNKNOWN,
}


def write_tiny_models(models: Mapping[str, Mapping[str, Any]], assets: Path) -> None:
    """The program that makes a plugin's `assets`: a folder for each model's config.json, there or in its argument."""
    parser = argparse.ArgumentParser(description=f"Write {', '.join(models)}.")
    parser.add_argument("folder", type=Path, nargs="?", default=assets, help="default: %(default)s")
    folder = parser.parse_args().folder
    for name, config in models.items():
        write_tiny_model(folder / name, config)


def write_tiny_model(folder: Path, config: Mapping[str, Any]) -> None:
    """Write an HF folder without weights, overwriting files of the same names.

    Args:
        config: config.json; its vocabulary must have `VOCAB_SIZE` entries for the tokenizer's ids.
    """
    assert config["vocab_size"] == VOCAB_SIZE, "the tokenizer's"
    folder.mkdir(parents=True, exist_ok=True)
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", GENERATION_CONFIG)
    _write_json(folder / "tokenizer.json", TOKENIZER)
    _write_json(folder / "tokenizer_config.json", TOKENIZER_CONFIG)
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8", newline="\n")


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8", newline="\n")
