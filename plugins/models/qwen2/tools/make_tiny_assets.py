"""Write the tiny model of the laptop demo: `qwen2-tiny` (0.8M parameters).

Run `python make_tiny_assets.py [FOLDER]`. A test compares the output with what is committed.
"""

from pathlib import Path

from slime_testing.tiny import DECODER, write_tiny_models

ASSETS = Path(__file__).resolve().parents[1] / "slime_plugin_qwen2" / "assets"

QWEN2 = {key: value for key, value in DECODER.items() if key != "attention_bias"} | {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
}

if __name__ == "__main__":
    write_tiny_models({"qwen2-tiny": QWEN2}, ASSETS)
