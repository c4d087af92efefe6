"""OLMo 2: a norm over all query heads together and one over all key heads, which is a block of this package's own."""

from slime.models.blocks import BF16, BuildingBlock, Saved
from slime.models.config_reader import ConfigReader
from slime.models.mapping import WeightMapping
from slime.models.rules import layer_rule
from slime.models.shapes import Block, Cut, Shape
from slime_megatron.transformer import decoder, embeddings, gqa, mlp, output, rotary


class Olmo2:
    family = "olmo2"

    def transformer_config(self, hf):
        return _read(hf)[0]

    def model_kwargs(self, hf):
        return _read(hf)[1]

    def block_spec(self, config, vp_stage):
        from slime_families.wide_norm import with_wide_norms
        from slime_megatron.transformer import specs

        attention, mlp = with_wide_norms(specs.gqa(config, post_norm=True)), specs.gated_mlp(config, post_norm=True)
        layer = specs.transformer_layer(config, attention=attention, mlp=mlp, pre_norm=False)
        return specs.decoder_block(config, vp_stage, lambda moe: layer)

    def weight_mapping(self, hf):
        rules = (
            *embeddings.rules(hf["vocab_size"]),
            *gqa.rules(hf["num_attention_heads"], hf["num_key_value_heads"]),
            *BLOCK.state(
                layer_rule("self_attention.q_layernorm.weight", "self_attn.q_norm.weight"),
                layer_rule("self_attention.k_layernorm.weight", "self_attn.k_norm.weight"),
            ),
            *mlp.rules(),
            *decoder.post_norm_rules("post_attention_layernorm", "post_feedforward_layernorm"),
            *output.rules(hf["vocab_size"], tied=hf.get("tie_word_embeddings", False)),
        )
        return WeightMapping(rules, hf["num_hidden_layers"])


def _read(hf):
    reader = ConfigReader(hf)
    reader.only("attention_bias", False)
    config = {
        **decoder.keywords(reader),
        **gqa.keywords(reader, bias=False, qk_norm=True, rotary_interleaved=False),
    }
    kwargs = {**rotary.keywords(reader, default_percent=1.0), **embeddings.keywords(reader)}
    reader.finish()
    return config, kwargs


class WideNorms(BuildingBlock):
    def saved(self, tokens):
        heads = (tokens.model["num_attention_heads"] + tokens.model["num_query_groups"]) / tokens.grid.tp
        return Saved(BF16 * heads * tokens.model["kv_channels"] * tokens.rank_tokens)


def _of(heads):
    return Shape(lambda m: (m[heads] * m["kv_channels"],), Cut.whole, Block.attention)


BLOCK = WideNorms(
    {
        "self_attention.q_layernorm.weight": _of("num_attention_heads"),
        "self_attention.k_layernorm.weight": _of("num_query_groups"),
    }
)
