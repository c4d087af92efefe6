"""Write the tiny model of the laptop demo: `llama-tiny` (0.8M parameters).

Run `python make_tiny_assets.py [FOLDER]`. A test compares the output with what is committed.
"""

from pathlib import Path

from slime_testing.tiny import DECODER, write_tiny_models

ASSETS = Path(__file__).resolve().parents[1] / "slime_plugin_llama" / "assets"

LLAMA = DECODER | {
    "architectures": ["LlamaForCausalLM"],
    "head_dim": 16,
    "mlp_bias": False,
    "model_type": "llama",
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
}

if __name__ == "__main__":
    write_tiny_models({"llama-tiny": LLAMA}, ASSETS)
