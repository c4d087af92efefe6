"""Write the tiny model of the laptop demo: `glm5-tiny` (9M parameters).

Run `python make_tiny_assets.py [FOLDER]`. A test compares the output with what is committed.
"""

from pathlib import Path

from slime_testing.tiny import SPARSE_DECODER, write_tiny_models

ASSETS = Path(__file__).resolve().parents[1] / "slime_plugin_glm5" / "assets"

MODELS = {
    "glm5-tiny": SPARSE_DECODER
    | {
        "architectures": ["GlmMoeDsaForCausalLM"],
        "first_k_dense_replace": 1,
        "index_n_heads": 32,
        "index_skip_topk_offset": 2,
        "index_topk_freq": 2,  # layers 1, 2 and 4 choose keys, layer 3 reuses those of layer 2
        "indexer_rope_interleave": True,
        "model_type": "glm_moe_dsa",
        "moe_intermediate_size": 64,
        "moe_layer_freq": 1,
        "moe_router_dtype": "float32",
        "n_group": 1,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "num_experts_per_tok": 2,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-5,
        "rope_interleave": True,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
        "routed_scaling_factor": 1.0,
        "scoring_func": "sigmoid",  # SGLang has no default for this, nor for topk_method
        "topk_group": 1,
        "topk_method": "noaux_tc",
    }
}

if __name__ == "__main__":
    write_tiny_models(MODELS, ASSETS)
