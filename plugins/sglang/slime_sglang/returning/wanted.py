"""What a server that somebody else started must be like, to be an engine of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version as installed
from typing import Any

from slime.config.hf import config_folder, read_hf_config
from slime.config.paths import resolve
from slime.config.schema import EvalConfig, ModelConfig, RolloutConfig
from slime.data.tokenize import load_tokenizer
from slime.topology.server_fields import has_stop_strings

COMPARED = (
    "dtype",
    "quantization",
    "kv_cache_dtype",
    "enable_deterministic_inference",
    "enable_fp32_lm_head",
)
"""Fields of `rollout.sglang` that a server must have as the run says: they change what it computes."""
PROBE = "Grüße, 世界!\n\tif x <= 12 + 34: return 'it is' # 46.0"
"""A text of which tokenizers make different tokens."""


class Wanted:
    """What a server must be like."""

    def __init__(self, model: ModelConfig, rollout: RolloutConfig, evaluation: EvalConfig) -> None:
        self._fields = rollout.sglang
        hf = read_hf_config(config_folder(model), model.num_layers)
        self._model = {name: hf[name] for name in ("model_type", "architectures") if name in hf}
        tokenizer = load_tokenizer(resolve(model.tokenizer or model.path))
        self._tokens = list(tokenizer.encode(PROBE, add_special_tokens=False))
        self._version = installed("sglang").partition("+")[0]
        self._needs_text = has_stop_strings(rollout, evaluation)

    def differences(self, info: Mapping[str, Any], model: Mapping[str, Any]) -> Sequence[str]:
        """Each in a few words.

        Args:
            info: of `/server_info`, with `tokens` of `PROBE` where it has a tokenizer.
            model: of `/model_info`.
        """
        return [*self._of_server(info), *self._of_model(model)]

    def _of_server(self, info: Mapping[str, Any]) -> Iterator[str]:
        if (found := str(info["version"]).partition("+")[0]) != self._version:
            yield f"is SGLang {found}, the run has {self._version}"
        if info["disaggregation_mode"] != "null":
            yield f"works in pairs (disaggregation_mode is {info['disaggregation_mode']})"
        if info["speculative_algorithm"]:
            yield f"drafts tokens (speculative_algorithm is {info['speculative_algorithm']})"
        if info.get("tokens", self._tokens) != self._tokens:
            yield f"has another tokenizer ({info['tokenizer_path']})"
        if self._needs_text and info["skip_tokenizer_init"]:
            yield "has no tokenizer (skip_tokenizer_init), which stop strings need"
        for name in COMPARED:
            if (wanted := self._fields.get(name)) is not None and info.get(name) != wanted:
                yield f"{name} is {info.get(name)}, rollout.sglang.{name} is {wanted}"

    def _of_model(self, model: Mapping[str, Any]) -> Iterator[str]:
        for name, wanted in self._model.items():
            if model.get(name) != wanted:
                yield f"its model's {name} is {model.get(name)}, the trained one's {wanted}"
        if not model["is_generation"]:
            yield "its model does not generate"
