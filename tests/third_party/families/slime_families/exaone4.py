"""EXAONE 4.0 without windows: norms behind attention and MLP and none before, rotary scaling of Llama 3.1."""

from slime.models.config_reader import ConfigReader
from slime.models.mapping import WeightMapping
from slime_megatron.transformer import decoder, embeddings, gqa, mlp, output, rotary


class Exaone4:
    family = "exaone4"

    def transformer_config(self, hf):
        return _read(hf)[0]

    def model_kwargs(self, hf):
        return _read(hf)[1]

    def block_spec(self, config, vp_stage):
        from slime_megatron.transformer import specs

        attention, mlp = specs.gqa(config, post_norm=True), specs.gated_mlp(config, post_norm=True)
        layer = specs.transformer_layer(config, attention=attention, mlp=mlp, pre_norm=False)
        return specs.decoder_block(config, vp_stage, lambda moe: layer)

    def weight_mapping(self, hf):
        rules = (
            *embeddings.rules(hf["vocab_size"]),
            *gqa.rules(hf["num_attention_heads"], hf["num_key_value_heads"], qk_norm=True),
            *mlp.rules(),
            *decoder.post_norm_rules("post_attention_layernorm", "post_feedforward_layernorm"),
            *output.rules(hf["vocab_size"], tied=hf.get("tie_word_embeddings", False)),
        )
        return WeightMapping(rules, hf["num_hidden_layers"])


def _read(hf):
    reader = ConfigReader(hf)
    reader.only("sliding_window", None)
    reader.only("layer_types", None, ["full_attention"] * reader.get("num_hidden_layers"))
    reader.get("sliding_window_pattern", None)
    config = {
        **decoder.keywords(reader),
        **gqa.keywords(reader, bias=False, qk_norm=True, rotary_interleaved=False),
    }
    kwargs = {**rotary.keywords(reader, default_percent=1.0), **embeddings.keywords(reader)}
    reader.finish()
    return config, kwargs
