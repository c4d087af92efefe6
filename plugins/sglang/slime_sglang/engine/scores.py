"""Reward models of every family that SGLang serves: one number for a sequence, in the place of logits.

SGLang has such classes for five families: two of them with a bias that no checkpoint has and that stays random, all of
them with a head in the precision of the model. Of other families it would give hidden states (SGLang 0.5.16).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

Weights = Iterable[tuple[str, torch.Tensor]]
_HEAD, _LOGITS = "score.", "lm_head."
"""Names, in a checkpoint, of the head of transformers' classes for sequence classification, and of the output layer."""


def scoring_class(original: Callable[[Any], tuple[type, str]], model_config: Any) -> tuple[type, str]:
    """Around SGLang's choice of a class: a causal one, of a model that is served without generating (`is_embedding`)
    and has one label, gets a head that scores."""
    found, name = original(model_config)
    scores = not model_config.is_generation and model_config.hf_config.num_labels == 1
    return (_scoring(found), name) if scores and name.endswith("ForCausalLM") else (found, name)


class LastToken(torch.nn.Module):
    """In the place of SGLang's `LogitsProcessor`: the head's number at the last token of each sequence.

    Args:
        head: [1, hidden size], in fp32. A score in 16 bits would be one of few, and close responses would tie.
    """

    def __init__(self, head: torch.nn.Linear) -> None:
        super().__init__()
        self._head = (head,)  # in a tuple, or it would be a module of this one, too

    def forward(self, input_ids: Any, hidden_states: torch.Tensor, lm_head: Any, batch: Any, *_: Any, **__: Any) -> Any:
        from sglang.srt.layers.pooler import EmbeddingPoolerOutput, PoolingType, pool_hidden_states

        last = pool_hidden_states(PoolingType.LAST, hidden_states, batch)
        scores = self._head[0](last.float())
        return EmbeddingPoolerOutput(scores, last if batch.return_pooled_hidden_states else None)


@functools.cache
def _scoring(causal: Any) -> type:
    class Scoring(causal):  # type: ignore[misc]
        """A causal model whose output layer is a head of one number."""

        def __init__(self, config: Any, *arguments: Any, **named: Any) -> None:
            super().__init__(config, *arguments, **named)
            self.lm_head = torch.nn.Identity()  # nothing of it is in the checkpoint
            self.score = torch.nn.Linear(config.hidden_size, 1, bias=False, dtype=torch.float32)
            self.logits_processor = LastToken(self.score)

        def forward(self, *arguments: Any, get_embedding: bool = True, **named: Any) -> Any:
            return super().forward(*arguments, **named)

        def load_weights(self, weights: Weights, *arguments: Any, **named: Any) -> Any:
            found: dict[str, torch.Tensor] = {}
            loaded = super().load_weights(_without_heads(weights, found), *arguments, **named)
            if [*found] != [f"{_HEAD}weight"]:
                raise ValueError(f"the head of a reward model is {_HEAD}weight alone, and this one has {sorted(found)}")
            with torch.no_grad():
                self.score.weight.copy_(found[f"{_HEAD}weight"])
            return loaded

    return Scoring


def _without_heads(weights: Weights, found: dict[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    """All but the heads; that which scores is put into `found`."""
    for name, tensor in weights:
        if name.startswith(_HEAD):
            found[name] = tensor
        elif not name.startswith(_LOGITS):
            yield name, tensor
