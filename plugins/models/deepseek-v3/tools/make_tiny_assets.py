"""Write the tiny models: `deepseek-v3-tiny`, of a million parameters, and `deepseek-v3.2-tiny`, of 9 million.

Run `python make_tiny_assets.py [FOLDER]`. A test compares the output with what is committed.
"""

from pathlib import Path

from slime_testing.tiny import DECODER, MAX_TOKENS, SPARSE_DECODER, write_tiny_models

ASSETS = Path(__file__).resolve().parents[1] / "slime_plugin_deepseek_v3" / "assets"

COMMON = {
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 64,
    "moe_layer_freq": 1,
    "n_group": 4,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_experts_per_tok": 4,
    "num_key_value_heads": 8,
    "num_nextn_predict_layers": 1,
    "rms_norm_eps": 1e-6,
    "rope_scaling": {
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 4,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": MAX_TOKENS // 4,
        "type": "yarn",
    },
    "rope_theta": 10000,
    "routed_scaling_factor": 1.0,
    "scoring_func": "sigmoid",
    "topk_group": 2,
    "topk_method": "noaux_tc",
}
MODELS = {
    "deepseek-v3-tiny": DECODER
    | COMMON
    | {
        "architectures": ["DeepseekV3ForCausalLM"],
        "kv_lora_rank": 32,
        "model_type": "deepseek_v3",
        "q_lora_rank": 48,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8,
        "v_head_dim": 16,
    },
    "deepseek-v3.2-tiny": SPARSE_DECODER
    | COMMON
    | {
        "architectures": ["DeepseekV32ForCausalLM"],
        "index_n_heads": 64,
        "model_type": "deepseek_v32",
        "num_experts": 8,  # transformers makes this many, SGLang n_routed_experts
    },
}

if __name__ == "__main__":
    write_tiny_models(MODELS, ASSETS)
