"""StableLM: LayerNorm with biases in the place of RMSNorm, and a quarter of each head rotated."""

from slime.models.config_reader import ConfigReader
from slime.models.mapping import WeightMapping
from slime_megatron.transformer import decoder, embeddings, gqa, mlp, output, rotary


class StableLm:
    family = "stablelm"

    def transformer_config(self, hf):
        return _read(hf)[0]

    def model_kwargs(self, hf):
        return _read(hf)[1]

    def block_spec(self, config, vp_stage):
        from slime_families.layer_norm import LayerNorm
        from slime_megatron.transformer import specs

        attention, mlp = specs.gqa(config), specs.gated_mlp(config)
        layer = specs.transformer_layer(config, attention=attention, mlp=mlp, norm=LayerNorm)
        return specs.decoder_block(config, vp_stage, lambda moe: layer, norm=LayerNorm)

    def weight_mapping(self, hf):
        rules = (
            *embeddings.rules(hf["vocab_size"]),
            *decoder.norm_rules(bias=True),
            *gqa.rules(hf["num_attention_heads"], hf["num_key_value_heads"], bias=hf.get("use_qkv_bias", False)),
            *mlp.rules(),
            *output.rules(hf["vocab_size"], tied=hf.get("tie_word_embeddings", False), norm_bias=True),
        )
        return WeightMapping(rules, hf["num_hidden_layers"])


def _read(hf):
    reader = ConfigReader(hf)
    reader.only("hidden_dropout", 0.0)
    for switch in ("qk_layernorm", "use_parallel_residual"):
        reader.only(switch, False)
    config = {
        **decoder.keywords(reader, normalization="LayerNorm", epsilon="layer_norm_eps"),
        **gqa.keywords(reader, bias=reader.get("use_qkv_bias", False), qk_norm=False, rotary_interleaved=False),
    }
    kwargs = {**rotary.keywords(reader, default_percent=0.25), **embeddings.keywords(reader)}
    reader.finish()
    return config, kwargs
