"""Write the tiny model of the laptop demo: `gemma3-tiny` (0.8M parameters).

Run `python make_tiny_assets.py [FOLDER]`. A test compares the output with what is committed.
"""

from pathlib import Path

from slime_testing.tiny import DECODER, write_tiny_models

ASSETS = Path(__file__).resolve().parents[1] / "slime_plugin_gemma3" / "assets"

GEMMA3 = {key: value for key, value in DECODER.items() if key != "hidden_act"} | {
    "architectures": ["Gemma3ForCausalLM"],
    "head_dim": 16,
    "hidden_activation": "gelu_pytorch_tanh",
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "sliding_attention"],
    "model_type": "gemma3_text",
    "num_key_value_heads": 2,
    "query_pre_attn_scalar": 16,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {
        "full_attention": {"rope_theta": 1000000.0, "rope_type": "default"},
        "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"},
    },
    "sliding_window": 12,
    "tie_word_embeddings": True,
}

if __name__ == "__main__":
    write_tiny_models({"gemma3-tiny": GEMMA3}, ASSETS)
