"""Write the tiny model of the laptop demo: `glm5-tiny` (1.3M parameters).

Run `python make_tiny_assets.py [--out FOLDER]`. A test compares the output with what is committed.
"""

import argparse
from pathlib import Path

from slime.testing.tiny import DECODER, write_tiny_model

ASSETS = Path(__file__).resolve().parents[1] / "slime_plugin_glm5" / "assets"

MODELS = {
    "glm5-tiny": DECODER
    | {
        "architectures": ["GlmMoeDsaForCausalLM"],
        "first_k_dense_replace": 1,
        "index_head_dim": 32,
        "index_n_heads": 16,  # so many that no two keys score the same
        "index_skip_topk_offset": 2,
        "index_topk": 16,  # fewer than a prompt has tokens
        "index_topk_freq": 2,  # layers 1, 2 and 4 choose keys, layer 3 reuses those of layer 2
        "indexer_rope_interleave": True,
        "kv_lora_rank": 32,
        "model_type": "glm_moe_dsa",
        "moe_intermediate_size": 64,
        "n_group": 1,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "num_experts_per_tok": 2,
        "num_key_value_heads": 8,
        "q_lora_rank": 64,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 16,
        "rms_norm_eps": 1e-5,
        "rope_interleave": True,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
        "routed_scaling_factor": 1.0,
        "topk_group": 1,
        "v_head_dim": 32,
    }
}


def write_assets(out: Path) -> None:
    """Write a folder for each model under `out`, overwriting files of the same names."""
    for name, config in MODELS.items():
        write_tiny_model(out / name, config)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ASSETS, help="folder to write into (default: the plugin's assets)")
    write_assets(parser.parse_args().out)
