"""The rows of `train.py`, and the random samples that each trains on."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from slime.types import TrainSample

GROUP = 8
RECOMPUTE = [
    "train.megatron.recompute_granularity=full",
    "train.megatron.recompute_method=uniform",
    "train.megatron.recompute_num_layers=1",
]
CPU_ADAM = [
    "train.optimizer.optimizer_cpu_offload=true",
    "train.optimizer.overlap_cpu_optimizer_d2h_h2d=true",
]


@dataclass(frozen=True)
class Case:
    """One row: tokens of a pack, tokens of each of its sequences, and what is switched on.

    Attributes:
        prompt: number of first tokens that each `GROUP` consecutive sequences have in common.
        shared: they are computed once.
        turns: `GROUP` sequences are turns of an attempt, of which the last has `sequence` tokens.
    """

    pack: int
    sequence: int
    recompute: bool = False
    cpu_adam: bool = False
    tensor: int = 1
    pipeline: int = 1
    prompt: int = 0
    shared: bool = False
    expert: int = 1
    turns: bool = False
    context: int = 1

    @property
    def layout(self) -> str:
        further = f", CP {self.context}" * (self.context > 1) + f", EP {self.expert}" * (self.expert > 1)
        return f"TP {self.tensor}, PP {self.pipeline}{further}"

    def arguments(self) -> list[str]:
        chosen = RECOMPUTE * self.recompute + CPU_ADAM * self.cpu_adam
        experts = ["expert_tensor_parallel_size=1", f"expert_model_parallel_size={self.expert}"]
        chosen += [f"train.megatron.{size}" for size in experts if self.expert > 1]
        return [
            *chosen,
            f"train.max_tokens_per_micro_batch={self.pack}",
            f"train.megatron.tensor_model_parallel_size={self.tensor}",
            f"train.megatron.pipeline_model_parallel_size={self.pipeline}",
            f"train.megatron.context_parallel_size={self.context}",
        ]


def random_samples(case: Case, num_micro_batches: int, vocab_size: int) -> list[TrainSample]:
    generator = np.random.default_rng(0)
    num_response_tokens = case.sequence - case.prompt if case.prompt else case.sequence * 3 // 4
    tokens = generator.integers(0, vocab_size, (num_micro_batches * case.pack // case.sequence, case.sequence))
    for number in range(len(tokens)):
        tokens[number, : case.prompt] = tokens[number // GROUP * GROUP, : case.prompt]
    return [_sample(own, num_response_tokens, generator, vocab_size) for own in tokens]


def turns(case: Case, num_micro_batches: int, vocab_size: int) -> list[TrainSample]:
    """As many attempts as there are packs: all of one's sequences fill it."""
    generator, found, eighth = np.random.default_rng(0), list[TrainSample](), case.sequence // GROUP
    assert case.pack == eighth * GROUP * (GROUP + 1) // 2
    for attempt in range(num_micro_batches):
        history = generator.integers(0, vocab_size, case.sequence)
        for end in range(eighth, case.sequence + 1, eighth):
            answer = generator.integers(0, vocab_size, eighth // 4)
            tokens = np.concatenate([history[: end - len(answer)], answer])
            found.append(replace(_sample(tokens, len(answer), generator, vocab_size), attempt=attempt))
    return found


def _sample(tokens: np.ndarray, num_trained: int, generator: np.random.Generator, vocab_size: int) -> TrainSample:
    return TrainSample(
        tokens=tokens,
        loss_mask=np.ones(num_trained, np.float32),
        columns={
            "advantages": np.full(num_trained, generator.normal(), np.float32),
            "rollout_logprobs": np.full(num_trained, -np.log(vocab_size), np.float32),
        },
    )
