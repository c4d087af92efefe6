"""Write the tiny models of the laptop demo: `qwen3-tiny` and `qwen3-moe-tiny` (0.8M and 1.0M parameters).

Run `python make_tiny_assets.py [FOLDER]`. A test compares the output with what is committed.
"""

from pathlib import Path

from slime_testing.tiny import DECODER, write_tiny_models

ASSETS = Path(__file__).resolve().parents[1] / "slime_plugin_qwen3" / "assets"

QWEN3 = DECODER | {
    "head_dim": 16,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
}

MODELS = {
    "qwen3-tiny": QWEN3 | {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"},
    "qwen3-moe-tiny": QWEN3
    | {
        "architectures": ["Qwen3MoeForCausalLM"],
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "model_type": "qwen3_moe",
        "moe_intermediate_size": 64,
        "norm_topk_prob": True,
        "num_experts": 8,
        "num_experts_per_tok": 2,
    },
}

if __name__ == "__main__":
    write_tiny_models(MODELS, ASSETS)
