"""Write the tiny models of the laptop demo: `glm4-tiny`, `glm4-moe-tiny` and `glm4-moe-lite-tiny`, of one to
three million parameters.

Run `python make_tiny_assets.py [FOLDER]`. A test compares the output with what is committed.
"""

from pathlib import Path

from slime_testing.tiny import DECODER, write_tiny_models

ASSETS = Path(__file__).resolve().parents[1] / "slime_plugin_glm4" / "assets"

GQA = {
    "attention_bias": True,
    "head_dim": 16,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"partial_rotary_factor": 0.5, "rope_theta": 10000.0, "rope_type": "default"},
}

SIGMOID_MOE = {
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 64,
    "n_group": 1,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_experts_per_tok": 2,
    "num_nextn_predict_layers": 1,
    "routed_scaling_factor": 1.0,
    "topk_group": 1,
}

MODELS = {
    "glm4-tiny": DECODER | GQA | {"architectures": ["Glm4ForCausalLM"], "model_type": "glm4"},
    "glm4-moe-tiny": DECODER
    | GQA
    | SIGMOID_MOE
    | {
        "architectures": ["Glm4MoeForCausalLM"],
        "head_dim": 64,  # with 2 heads of keys, and experts of 128: whole blocks, where engines hold it in FP8
        "model_type": "glm4_moe",
        "moe_intermediate_size": 128,
        "partial_rotary_factor": 0.5,
        "use_qk_norm": True,
    },
    "glm4-moe-lite-tiny": DECODER
    | SIGMOID_MOE
    | {
        "architectures": ["Glm4MoeLiteForCausalLM"],
        "kv_lora_rank": 32,
        "model_type": "glm4_moe_lite",
        "num_key_value_heads": 8,
        "partial_rotary_factor": 1.0,
        "q_lora_rank": 48,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
        "topk_method": "noaux_tc",
        "v_head_dim": 16,
    },
}

if __name__ == "__main__":
    write_tiny_models(MODELS, ASSETS)
