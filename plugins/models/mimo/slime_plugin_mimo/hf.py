"""`mimo` for transformers, which lacks it: Qwen2's decoder, and prediction layers beside it.

MiMo's checkpoints bring such classes as code. With these, nothing that a checkpoint brings is run: SGLang takes the
config from here (entry-point group `sglang.srt.plugins`), and `AutoModelForCausalLM` loads what slime exports.
"""

from __future__ import annotations

from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM
from transformers.models.qwen2.modeling_qwen2 import Qwen2DecoderLayer, Qwen2RMSNorm


class MimoConfig(Qwen2Config):  # type: ignore[misc]
    """Qwen2's, with `num_nextn_predict_layers`."""

    model_type = "mimo"
    num_nextn_predict_layers: int = 0


class MimoPredictionLayer(Qwen2DecoderLayer):  # type: ignore[misc]
    """Multi-token prediction: a decoder layer on the projection of [hidden state | embedding of the next token]."""

    hidden_first = True

    def __init__(self, config: MimoConfig) -> None:
        super().__init__(config, layer_idx=0)
        self.token_layernorm = Qwen2RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.hidden_layernorm = Qwen2RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.input_proj = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
        self.final_layernorm = Qwen2RMSNorm(config.hidden_size, config.rms_norm_eps)


class MiMoForCausalLM(Qwen2ForCausalLM):  # type: ignore[misc]
    """Qwen2's; holds the prediction layers, which take no part in its logits."""

    config_class = MimoConfig

    def __init__(self, config: MimoConfig) -> None:
        super().__init__(config)
        num_layers = config.num_nextn_predict_layers
        self.model.mtp_layers = nn.ModuleList(MimoPredictionLayer(config) for _ in range(num_layers))
        self.post_init()


def register() -> None:
    """Tell transformers; SGLang calls this in each of its processes."""
    AutoConfig.register(MimoConfig.model_type, MimoConfig, exist_ok=True)
    AutoModelForCausalLM.register(MimoConfig, MiMoForCausalLM, exist_ok=True)
