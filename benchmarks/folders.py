"""Folders of models whose config.json is changed in one place: does slime read it as transformers does, or refuse it?

    python benchmarks/folders.py                                  # all families and changes, some minutes on two cores
    python benchmarks/folders.py --families llama gemma3_text     # of some families
    python benchmarks/folders.py --every 25                       # each 25th of the changes

A tiny checkpoint of each family has random weights of transformers' own class. Each change is then made in its
config.json alone, and both load the folder: slime's Megatron-core model and transformers' class, in fp32 on a CPU.

The changes: each field that the family's table knows (`slime.models.published`) is left out, null, 0, false, a text,
another number of its kind; rotary fields in both spellings, in both places, at every depth, of every kind; fields that
nobody knows; classes.

same: no logit differs by more than 1e-4, of logits of order 4: the two implementations add in another order, which
costs 1e-5 at most, while a wrong base of rotary embeddings costs more than 1e-3. refused: one line of slime's says why,
and names the field, or the tensor whose shape it changes. alone: slime loads what transformers does not.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

warnings.filterwarnings("ignore")
os.environ["TORCHDYNAMO_DISABLE"] = "1"

import torch  # noqa: E402
import transformers  # noqa: E402
from machine import conditions  # noqa: E402
from torch import Tensor  # noqa: E402

from slime import plugins  # noqa: E402
from slime.config.hf import read_hf_config  # noqa: E402
from slime.errors import SlimeError  # noqa: E402
from slime_testing import models  # noqa: E402

ROOT = Path(__file__).parents[1]
TOLERANCE = 1e-4
NEEDED = ("model_type", "num_hidden_layers", "vocab_size", "use_cache")
"""Fields that this program needs as they are, and one that says nothing of a model."""
SAME, REFUSED, ALONE, DIFFERENT = "same", "refused", "alone", "different"
ENGINE = {"glm_moe_dsa": ("indexer_rope_interleave",)}
"""Fields that are read as engines do, which transformers' class does not heed (plugins/models/glm5/README.md)."""
Change = tuple[str, str, Mapping[str, Any]]
"""Its kind, its field, and what it sets; `_ABSENT` takes a field away."""
_ABSENT = object()
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
_LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip
_DEEPSEEK = {
    "type": "yarn", "factor": 8, "mscale": 1.0, "mscale_all_dim": 1.0, "original_max_position_embeddings": 32,
    "beta_fast": 32, "beta_slow": 1,
}  # fmt: skip
ROTARY: Mapping[str, Mapping[str, Any]] = {
    "default": {"rope_type": "default"},
    "a base": {"rope_type": "default", "rope_theta": 5e4},
    "linear": {"rope_type": "linear", "factor": 8.0},
    "linear, old": {"type": "linear", "factor": 8.0},
    "linear without factor": {"rope_type": "linear"},
    "dynamic": {"rope_type": "dynamic", "factor": 4.0},
    "yarn": _YARN,
    "yarn, old": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
    "yarn without original": {"rope_type": "yarn", "factor": 4.0},
    "yarn without factor": {"rope_type": "yarn", "original_max_position_embeddings": 64},
    "yarn not truncated": _YARN | {"truncate": False},
    "yarn with a factor of attention": _YARN | {"attention_factor": 1.5},
    "deepseek": _DEEPSEEK,
    "deepseek, scales unequal": _DEEPSEEK | {"mscale": 0.7},
    "deepseek, 2 and 1": _DEEPSEEK | {"mscale": 2.0},
    "deepseek, no mscale": {key: value for key, value in _DEEPSEEK.items() if key != "mscale"},
    "deepseek, mscale alone": {key: value for key, value in _DEEPSEEK.items() if key != "mscale_all_dim"},
    "deepseek, neither": {key: value for key, value in _DEEPSEEK.items() if not key.startswith("mscale")},
    "deepseek, mscale 0": _DEEPSEEK | {"mscale": 0.0},
    "deepseek, both 0": _DEEPSEEK | {"mscale": 0.0, "mscale_all_dim": 0.0},
    "deepseek, betas": _DEEPSEEK | {"beta_fast": 16, "beta_slow": 2},
    "deepseek, its own base": _DEEPSEEK | {"rope_theta": 5e4},
    "llama3": _LLAMA3,
    "llama3, 32": _LLAMA3 | {"factor": 32.0},
    "llama3, another original": _LLAMA3 | {"original_max_position_embeddings": 64},
    "llama3, low 2": _LLAMA3 | {"low_freq_factor": 2.0},
    "llama3 without low": {key: value for key, value in _LLAMA3.items() if key != "low_freq_factor"},
    "llama3 without original": {key: value for key, value in _LLAMA3.items() if not key.startswith("original")},
    "longrope": {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8, "factor": 4.0,
                 "original_max_position_embeddings": 64},
    "mrope": {"type": "mrope", "mrope_section": [2, 3, 3]},
    "both names, which differ": {"type": "linear", "rope_type": "default", "factor": 2.0},
    "a part": {"rope_type": "default", "partial_rotary_factor": 0.5},
    "all": {"rope_type": "default", "partial_rotary_factor": 1.0},
    "a surplus factor": {"rope_type": "default", "factor": 2.0},
    "a surplus key": {"rope_type": "default", "mystery": 2.0},
    "a surplus null": {"rope_type": "default", "mystery": None},
    "by layer, global linear": {"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}},
    "by layer, local base": {"full_attention": {"rope_type": "default", "rope_theta": 1e6},
                             "sliding_attention": {"rope_type": "default", "rope_theta": 2e4}},
    "by layer, local linear": {"full_attention": {"rope_type": "default", "rope_theta": 1e6},
                               "sliding_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}},
    "by layer, global alone": {"full_attention": {"rope_type": "default", "rope_theta": 5e5}},
    "by layer, local alone": {"sliding_attention": {"rope_type": "default", "rope_theta": 1e4}},
    "by layer, a surplus key": {"full_attention": {"rope_type": "default", "rope_theta": 1e6, "mystery": 1},
                                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}},
    "empty": {},
}  # fmt: skip
SURPLUS: Mapping[str, Any] = {
    "mystery": 1.5, "is_causal": False, "attention_chunk_size": 8, "logit_scale": 0.5, "attn_logit_softcapping": 30.0,
    "residual_multiplier": 2.0, "sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"],
    "use_sliding_window": True, "attention_bias": True, "mlp_bias": True, "head_dim": 8, "hidden_act": "gelu",
    "hidden_activation": "gelu", "partial_rotary_factor": 0.5, "rope_theta": 3e4, "num_local_experts": 4,
    "num_experts": 4, "index_topk": 0, "scoring_func": "softmax", "topk_method": "greedy", "qk_head_dim": 8,
    "rope_interleave": False, "rope_is_neox_style": False, "scale_emb": 0, "quantization_config": {"bits": 4},
    "original_max_position_embeddings": 64, "mlp_layer_types": ["sparse", "sparse"], "dtype": "float16",
    "mlp_only_layers": [0], "decoder_sparse_step": 2, "sliding_window_pattern": 2, "_sliding_window_pattern": 2,
    "use_bidirectional_attention": True, "attention_dropout": 0.1, "id2label": {"0": "a"}, "is_decoder": True,
    "rope_local_base_freq": 2e4, "query_pre_attn_scalar": 64, "tie_word_embeddings": True, "use_qk_norm": True,
    "first_k_dense_replace": 0, "norm_topk_prob": False, "routed_scaling_factor": 3.0, "n_group": 2, "topk_group": 2,
    "indexer_types": ["full", "shared"], "index_topk_freq": 2, "indexer_rope_interleave": True,
}  # fmt: skip
CLASSES = (["Qwen2Model"], ["LlamaModel"], ["MistralForCausalLM"], [], None, "LlamaForCausalLM")


@dataclass(frozen=True)
class Found:
    """Of one changed folder.

    Attributes:
        outcome: see above; a refusal that does not name its field has the line behind it.
        off: the largest difference of a logit.
    """

    change: Change
    outcome: str
    said: str = ""
    off: float = 0.0


def changes(family: str, hf: Mapping[str, Any]) -> Iterator[Change]:
    """All, of a folder with this config.json."""
    published = plugins.load().models.create(family).published
    for name in published.kinds:
        if name in NEEDED or name in ENGINE.get(family, ()) or name.endswith("_token_id"):
            continue
        yield "absent", name, {name: _ABSENT}
        yield "null", name, {name: None}
        yield "0", name, {name: 0}
        yield "false", name, {name: False}
        yield "a text", name, {name: "1e-05"}
        yield "negative", name, {name: -1}
        yield "no number", name, {name: float("nan")}
        value = hf.get(name, published.defaults.get(name))
        if isinstance(value, bool):
            yield "another", name, {name: not value}
        elif isinstance(value, int | float):
            yield "another", name, {name: value * 2 or 1}
    for name, value in SURPLUS.items():
        if name in ENGINE.get(family, ()):
            continue
        yield "set", name, {name: value}
    for label, parameters in ROTARY.items():
        for name, other in (("rope_scaling", "rope_parameters"), ("rope_parameters", "rope_scaling")):
            yield f"{label}, alone", name, {name: parameters, other: _ABSENT}
            yield f"{label}, beside", name, {name: parameters}
            yield f"{label}, beside a base", name, {name: parameters, other: _ABSENT, "rope_theta": 7e4}
    yield "neither", "rope_parameters", {"rope_parameters": _ABSENT, "rope_scaling": _ABSENT, "rope_theta": _ABSENT}
    yield "a text", "rope_scaling", {"rope_scaling": "dynamic", "rope_parameters": _ABSENT}
    for names in CLASSES:
        yield "class", "architectures", {"architectures": names}


def base(family: str) -> dict[str, Any]:
    """The smallest config.json of the family's tests, cut to two layers."""
    for file in sorted(ROOT.glob("plugins/models/*/tests/configs/*.json")):
        hf = json.loads(file.read_text())
        if hf["model_type"] == family:
            named = [name for name, value in hf.items() if isinstance(value, list) and len(value) == 4]
            hf |= {name: hf[name][:2] for name in named} | {"num_hidden_layers": 2}
            return {name: value for name, value in hf.items() if name != "num_nextn_predict_layers"}
    raise AssertionError(f"no config of {family}")


def ours(folder: Path) -> Tensor:
    """slime's logits, [2, tokens, vocabulary]."""
    hf = read_hf_config(str(folder))
    return models.logits_of(models.run_config(hf["model_type"], folder, {}), hf)


def theirs(folder: Path) -> Tensor:
    """transformers' logits."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        return torch.cat([model(each[None]).logits[0] for each in models.sequences(model.config.vocab_size)])


def try_change(change: Change, hf: Mapping[str, Any], folder: Path) -> Found:
    """Both, of the folder with its config.json changed."""
    _, name, content = change
    changed = {key: value for key, value in {**hf, **content}.items() if value is not _ABSENT}
    (folder / "config.json").write_text(json.dumps(changed))
    try:
        logits = ours(folder)
    except SlimeError as refusal:
        by_name = name in str(refusal) or ("rope_" in name and "rope" in str(refusal)) or "tensor" in str(refusal)
        return Found(change, REFUSED, "" if by_name or "shape" in str(refusal) else str(refusal))
    except Exception as fault:  # noqa: BLE001, which a run's check would tell in one line, without the field
        return Found(change, DIFFERENT, f"{type(fault).__name__}: {fault}")
    try:
        expected = theirs(folder)
    except Exception as fault:  # noqa: BLE001, whatever it is
        return Found(change, ALONE, f"{type(fault).__name__}: {str(fault).partition(chr(10))[0][:80]}")
    off = float((logits - expected).abs().max()) if logits.shape[1:] == expected.shape else float("inf")
    return Found(change, SAME if off <= TOLERANCE else DIFFERENT, off=off)


def try_family(family: str, every: int) -> list[Found]:
    """All changes of one family, or each `every`-th."""
    with tempfile.TemporaryDirectory() as scratch, contextlib.redirect_stderr(None):
        folder, hf = Path(scratch), base(family)
        models.write_checkpoint(hf, folder)
        hf = {**hf, "architectures": json.loads((folder / "config.json").read_text())["architectures"]}
        unchanged = try_change(("none", "", {}), hf, folder)
        assert unchanged.outcome == SAME, unchanged
        return [try_change(change, hf, folder) for change in list(changes(family, hf))[::every]]


def table(found: Mapping[str, list[Found]]) -> Iterator[str]:
    """A row for each family, then a line for what is not the same and not refused by name."""
    yield f"| family | changes | {SAME} | largest difference | {REFUSED} | {ALONE} | {DIFFERENT} |"
    yield "|---|---|---|---|---|---|---|"
    for family, of_family in found.items():
        counts = Counter(each.outcome for each in of_family)
        off = max((each.off for each in of_family if each.outcome == SAME), default=0.0)
        cells = (counts[SAME], f"{off:.0e}", counts[REFUSED], counts[ALONE], counts[DIFFERENT])
        yield f"| {family} | {len(of_family)} | {' | '.join(map(str, cells))} |"
    for family, of_family in found.items():
        for each in of_family:
            if each.said or each.outcome == DIFFERENT:
                kind, name, _ = each.change
                yield f"- {family}, {name}, {kind}: {each.outcome}, {each.said or f'by {each.off:.1e}'}"


def main() -> None:
    from slime_megatron.train import megatron

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", nargs="+", default=plugins.load().models.names())
    parser.add_argument("--every", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    logging.disable(logging.ERROR)
    with contextlib.suppress(ImportError):
        from slime_plugin_mimo.hf import register

        register()
    cfg = models.run_config("none", ROOT, {})
    megatron.initialize_alone(cfg.cluster, cfg.train.megatron, cfg.run.seed)
    found = {family: try_family(family, arguments.every) for family in arguments.families}
    sys.stdout.write(f"{conditions()}, transformers {transformers.__version__}\n\n" + "\n".join(table(found)) + "\n")


if __name__ == "__main__":
    main()
