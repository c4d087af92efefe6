"""Write the two tiny models of the laptop demo: ``glm4-tiny`` and ``glm4-moe-tiny``.

Each folder is what a Hugging Face checkpoint holds, less the weights: the architecture (``config.json``), a tokenizer
and a chat template. The architectures are the real ones, only small (0.8M and 1.0M parameters), so whatever trains or
serves these two trains or serves their big sisters by the same code. Weights are drawn at random when a run starts.

The tokenizer works on characters: each printable ASCII character, newline and tab is a token, all else is ``<unk>``.

Run ``python make_tiny_assets.py [--out FOLDER]``. The output depends on nothing but this file; a test compares it with
what is committed.
"""

import argparse
import json
from pathlib import Path

ASSETS = Path(__file__).resolve().parents[1] / "slime_plugin_glm4" / "assets"

# GLM-4's own special tokens. An answer ends with <|endoftext|>, which also pads; [gMASK]<sop> opens every conversation.
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

SHARED_CONFIG = {
    "attention_bias": True,
    "attention_dropout": 0.0,
    "dtype": "float32",
    "eos_token_id": TOKENS.index(PAD),
    "head_dim": 16,  # many small heads pick out single digits: twice as fast to learn as 4 heads of 32
    "hidden_act": "silu",
    "hidden_size": 128,
    "initializer_range": 0.08,  # about 1 / sqrt(hidden_size); the 0.02 of wide models learns more slowly here
    "max_position_embeddings": MAX_TOKENS,
    "num_attention_heads": 8,
    "num_hidden_layers": 4,
    "num_key_value_heads": 2,
    "pad_token_id": TOKENS.index(PAD),
    "rope_parameters": {"partial_rotary_factor": 0.5, "rope_theta": 10000.0, "rope_type": "default"},
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "use_cache": True,
    "vocab_size": VOCAB_SIZE,
}

GLM4_CONFIG = SHARED_CONFIG | {
    "architectures": ["Glm4ForCausalLM"],
    "intermediate_size": 384,
    "model_type": "glm4",
}

GLM4_MOE_CONFIG = SHARED_CONFIG | {
    "architectures": ["Glm4MoeForCausalLM"],
    "first_k_dense_replace": 1,
    "intermediate_size": 384,
    "model_type": "glm4_moe",
    "moe_intermediate_size": 64,
    "n_group": 1,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_experts_per_tok": 2,
    "num_nextn_predict_layers": 0,
    "partial_rotary_factor": 0.5,
    "routed_scaling_factor": 1.0,
    "topk_group": 1,
    "use_qk_norm": True,
}

GENERATION_CONFIG = {
    "do_sample": True,
    "eos_token_id": TOKENS.index(PAD),
    "pad_token_id": TOKENS.index(PAD),
    "temperature": 1.0,
}

# A BPE model without merges splits text into its characters; `Fuse` joins them again without adding spaces.
TOKENIZER = {
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


def write_assets(out: Path) -> None:
    """Write the folders ``glm4-tiny`` and ``glm4-moe-tiny`` under ``out``, overwriting files of the same names."""
    for name, config in (("glm4-tiny", GLM4_CONFIG), ("glm4-moe-tiny", GLM4_MOE_CONFIG)):
        folder = out / name
        folder.mkdir(parents=True, exist_ok=True)
        _write_json(folder / "config.json", config)
        _write_json(folder / "generation_config.json", GENERATION_CONFIG)
        _write_json(folder / "tokenizer.json", TOKENIZER)
        _write_json(folder / "tokenizer_config.json", TOKENIZER_CONFIG)
        (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8", newline="\n")


def _write_json(path: Path, content: dict) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8", newline="\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ASSETS, help="folder to write into (default: the plugin's assets)")
    write_assets(parser.parse_args().out)
