"""Write the tiny model of the laptop demo: `mimo-tiny` (1.0M parameters, its prediction layer included).

Run `python make_tiny_assets.py [FOLDER]`. A test compares the output with what is committed.
"""

from pathlib import Path

from slime_testing.tiny import DECODER, write_tiny_models

ASSETS = Path(__file__).resolve().parents[1] / "slime_plugin_mimo" / "assets"

MODELS = {
    "mimo-tiny": DECODER
    | {
        "architectures": ["MiMoForCausalLM"],
        "attention_bias": True,
        "head_dim": 16,
        "model_type": "mimo",
        "num_key_value_heads": 2,
        "num_nextn_predict_layers": 1,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
    },
}

if __name__ == "__main__":
    write_tiny_models(MODELS, ASSETS)
