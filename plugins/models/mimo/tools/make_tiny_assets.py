"""Write the tiny model of the laptop demo: `mimo-tiny` (1.0M parameters, its prediction layer included).

Run `python make_tiny_assets.py [--out FOLDER]`. A test compares the output with what is committed.
"""

import argparse
from pathlib import Path

from slime.testing.tiny import DECODER, write_tiny_model

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


def write_assets(out: Path) -> None:
    """Write a folder for each model under `out`, overwriting files of the same names."""
    for name, config in MODELS.items():
        write_tiny_model(out / name, config)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ASSETS, help="folder to write into (default: the plugin's assets)")
    write_assets(parser.parse_args().out)
