"""Phi-3 and Phi-4-mini: queries, keys and values in one tensor of the checkpoint, gate and up in another."""

from slime.models.config_reader import ConfigReader
from slime.models.mapping import WeightMapping
from slime.models.rules import Layout, layer_rule
from slime_megatron.transformer import decoder, embeddings, gqa, mlp, output, rotary


class Phi3:
    family = "phi3"

    def transformer_config(self, hf):
        return _read(hf)[0]

    def model_kwargs(self, hf):
        return _read(hf)[1]

    def block_spec(self, config, vp_stage):
        from slime_megatron.transformer import specs

        layer = specs.transformer_layer(config, attention=specs.gqa(config), mlp=specs.gated_mlp(config))
        return specs.decoder_block(config, vp_stage, lambda moe: layer)

    def weight_mapping(self, hf):
        num_heads, num_groups = hf["num_attention_heads"], hf["num_key_value_heads"]
        fused = Layout(parts=(num_heads // num_groups, 1, 1), num_units=num_groups, fused=True)
        rules = (
            *embeddings.rules(hf["vocab_size"]),
            *decoder.norm_rules(),
            *gqa.BLOCK.state(
                layer_rule("self_attention.linear_qkv.weight", "self_attn.qkv_proj.weight", layout=fused),
                layer_rule("self_attention.linear_proj.weight", "self_attn.o_proj.weight"),
            ),
            *mlp.fused_rules(),
            *output.rules(hf["vocab_size"], tied=hf.get("tie_word_embeddings", False)),
        )
        return WeightMapping(rules, hf["num_hidden_layers"])


def _read(hf):
    reader = ConfigReader(hf)
    for dropout in ("embd_pdrop", "resid_pdrop"):
        reader.only(dropout, 0.0)
    reader.only("sliding_window", None)
    reader.get("original_max_position_embeddings", None)
    config = {
        **decoder.keywords(reader),
        **gqa.keywords(reader, bias=False, qk_norm=False, rotary_interleaved=False),
    }
    kwargs = {**rotary.keywords(reader, default_percent=1.0), **embeddings.keywords(reader)}
    reader.finish()
    return config, kwargs
