"""A HF `config.json` as bridges read it: through one `ConfigReader`, block by block.

They end with `ConfigReader.finish`, which refuses what no block has read: a field that changes the model is never
ignored. Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from slime.config.hf import QUANTIZATION
from slime.errors import SlimeError
from slime.models.published import Published

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
_UNREAD = "It may change the model; the family's plugin would have to support it."


class ConfigReader:
    """A config.json that remembers which fields were read, and what was wrong with them.

    Args:
        hf: the file, or an object inside it.
        published: the table of the family, whose defaults stand for what is missing.
        inside: the names of the objects around it.

    Raises:
        SlimeError: values are not of their fields' kinds, or it is of another class than the family's.
    """

    def __init__(self, hf: Mapping[str, Any], published: Published | None = None, inside: str = "") -> None:
        self._hf, self._inside = hf, inside
        self._defaults: Mapping[str, Any] = published.defaults if published else {}
        if published:
            published.complete(hf)
        self._read: set[str] = set()
        self._objects: list[ConfigReader] = []
        self._refused: list[tuple[str, str]] = []

    def get(self, key: str, default: Any = _REQUIRED) -> Any:
        """The field's value; if it is missing, the published class's default, or the one given here where that class
        does not know the field. A SlimeError if there is none."""
        self._read.add(key)
        value = self._hf.get(key, self._defaults.get(key, default))
        if value is _REQUIRED:
            todo = "Take the config.json of the checkpoint."
            raise SlimeError(f"the field '{self._inside}{key}' is missing", where="config.json", todo=todo)
        return value

    def only(self, key: str, *supported: Any) -> Any:
        """The field's value, which must be one of `supported`; if it is missing, and has no default, their first."""
        value = self.get(key, supported[0])
        if value not in supported:
            self.refuse(key, value, f"Supported: {', '.join(map(repr, supported))}.")
        return value

    def says(self, key: str) -> bool:
        return key in self._hf

    def skip(self, *keys: str) -> None:
        """Take fields as they are, which say nothing of the forward pass; without names all that there are."""
        self._read.update(keys or self._hf)

    def inside(self, key: str) -> ConfigReader:
        """The reader of an object, empty if it is missing; `finish` refuses what nobody has read of it, too."""
        found = ConfigReader(self.get(key, None) or {}, inside=f"{self._inside}{key}.")
        self._objects.append(found)
        return found

    def refuse(self, key: str, value: Any, todo: str) -> None:
        """Have `finish` refuse a value; what has been found by then is told together."""
        shown = value if isinstance(value, str) else repr(value)
        shown = shown if len(shown) <= 60 else f"{shown[:60]}..."
        missing = "" if key in self._hf else ", which it is where the file does not say it,"
        self._refused.append((f"'{self._inside}{key}: {shown}'{missing} is not supported for this model family", todo))

    def finish(self) -> None:
        """Refuse what was found, and each field that nobody read.

        Neutral is the published class's default. Of a field that neither this class nor the engine knows, neutral is
        what switches it off (null, false, 0, empty); inside an object null alone. So are names that begin with an
        underscore: transformers' own notes.
        """
        if refused := dict(self._all_refused()):
            todo = " ".join(dict.fromkeys(refused.values()))
            raise SlimeError("; ".join(refused), where="config.json", todo=todo)

    def _all_refused(self) -> Iterator[tuple[str, str]]:
        for key, value in self._hf.items():
            if key not in self._read | _NEUTRAL and not key.startswith("_") and not self._is_neutral(key, value):
                self.refuse(key, value, _CONVERT if key == QUANTIZATION else _UNREAD)
        yield from self._refused
        for each in self._objects:
            yield from each._all_refused()

    def _is_neutral(self, key: str, value: Any) -> bool:
        if key in self._defaults:
            return bool(value == self._defaults[key])
        return value is None if self._inside else not value
