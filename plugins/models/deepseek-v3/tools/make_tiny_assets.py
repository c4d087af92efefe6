"""Write the tiny model of the laptop demo, `deepseek-v3-tiny`, of about a million parameters.

Run `python make_tiny_assets.py [FOLDER]`. A test compares the output with what is committed.
"""

from pathlib import Path

from slime.testing.tiny import DECODER, MAX_TOKENS, write_tiny_models

ASSETS = Path(__file__).resolve().parents[1] / "slime_plugin_deepseek_v3" / "assets"

MODELS = {
    "deepseek-v3-tiny": DECODER
    | {
        "architectures": ["DeepseekV3ForCausalLM"],
        "first_k_dense_replace": 1,
        "kv_lora_rank": 32,
        "model_type": "deepseek_v3",
        "moe_intermediate_size": 64,
        "moe_layer_freq": 1,
        "n_group": 4,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "num_experts_per_tok": 4,
        "num_key_value_heads": 8,
        "num_nextn_predict_layers": 1,
        "q_lora_rank": 48,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8,
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
        "v_head_dim": 16,
    }
}

if __name__ == "__main__":
    write_tiny_models(MODELS, ASSETS)
