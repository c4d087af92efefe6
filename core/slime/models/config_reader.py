"""A HF `config.json` as bridges read it: through one `ConfigReader`, block by block.

They end with `ConfigReader.finish`, which refuses what no block has read: a field that changes the model is never
ignored. Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slime.config.hf import QUANTIZATION
from slime.errors import SlimeError

_TOKEN_IDS = ("bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id")
_PROVENANCE = ("_name_or_path", "architectures", "auto_map", "model_type", "transformers_version")
_OF_ANY_TASK = (
    "add_cross_attention", "begin_suppress_tokens", "chunk_size_feed_forward", "decoder_start_token_id", "do_sample",
    "early_stopping", "finetuning_task", "forced_bos_token_id", "forced_eos_token_id", "id2label", "label2id",
    "length_penalty", "max_length", "min_length", "no_repeat_ngram_size", "num_beam_groups", "num_beams",
    "num_return_sequences", "output_attentions", "output_hidden_states", "output_scores", "prefix", "problem_type",
    "remove_invalid_values", "repetition_penalty", "return_dict", "return_dict_in_generate", "sep_token_id",
    "suppress_tokens", "task_specific_params", "temperature", "tf_legacy_loss", "tokenizer_class", "top_k", "top_p",
    "torchscript", "typical_p", "use_bfloat16",
)  # fmt: skip
"""What older versions of transformers wrote into every model's file."""
_NEUTRAL = frozenset({*_TOKEN_IDS, *_PROVENANCE, *_OF_ANY_TASK, "dtype", "torch_dtype", "use_cache"})
"""Fields that say nothing about the computation of one forward pass in training."""

_REQUIRED = object()
_CONVERT = "Run 'slime convert fp8-to-bf16' and train from its folder; rollout.fp8=<this folder> generates in FP8."


class ConfigReader:
    """A config.json that remembers which fields were read."""

    def __init__(self, hf: Mapping[str, Any], where: str = "config.json") -> None:
        self._hf, self._where = hf, where
        self._read: set[str] = set()

    def get(self, key: str, default: Any = _REQUIRED) -> Any:
        """The field's value, or the default; a SlimeError if it is missing and has none."""
        self._read.add(key)
        value = self._hf.get(key, default)
        if value is _REQUIRED:
            raise SlimeError(
                f"the field '{key}' is missing", where=self._where, todo="Take the config.json of the checkpoint."
            )
        return value

    def only(self, key: str, *supported: Any) -> Any:
        """The field's value, which must be one of `supported`; the first of them if it is missing."""
        value = self.get(key, supported[0])
        if value not in supported:
            self._refuse(key, value, f"Supported: {', '.join(map(repr, supported))}.")
        return value

    def finish(self) -> None:
        """Refuse a field that nobody read, unless it is neutral or switched off (null, false, 0, empty).

        Neutral are also names that begin with an underscore: transformers' own notes.
        """
        for key, value in self._hf.items():
            if value and key not in self._read and key not in _NEUTRAL and not key.startswith("_"):
                todo = (
                    _CONVERT
                    if key == QUANTIZATION
                    else "It may change the model; the family's plugin would have to support it."
                )
                self._refuse(key, value, todo)

    def _refuse(self, key: str, value: Any, todo: str) -> None:
        shown = repr(value) if len(repr(value)) <= 60 else f"{repr(value)[:60]}..."
        raise SlimeError(f"'{key}: {shown}' is not supported for this model family", where=self._where, todo=todo)
