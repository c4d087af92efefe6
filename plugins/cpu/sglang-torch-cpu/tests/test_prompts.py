"""A batch with repeated prompts against the same batch computed whole: logits and cache, and how much was computed."""

from types import SimpleNamespace

import pytest
import torch
from sglang.srt.layers.logits_processor import LogitsProcessorOutput
from sglang.srt.layers.pooler import EmbeddingPoolerOutput
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardBatch, ForwardMode

from sglang_torch_cpu import prompts

PROMPTS = [[5, 6, 7], [5, 6], [5, 6, 7], [9], [5, 6, 7], [9], [5, 6, 7]]
OLD = [0, 0, 0, 0, 0, 0, 2]
"""Tokens that were computed before: the last sequence has the first one's new tokens, but goes on with others."""
SLOTS = 64


def batch(**fields) -> ForwardBatch:
    lengths = [len(prompt) for prompt in PROMPTS]
    new, old = torch.tensor(lengths), torch.tensor(OLD)
    every = {
        "forward_mode": ForwardMode.EXTEND,
        "batch_size": len(PROMPTS),
        "input_ids": torch.tensor([token for prompt in PROMPTS for token in prompt]),
        "req_pool_indices": torch.randperm(len(PROMPTS)),
        "seq_lens": new + old,
        "seq_lens_cpu": new + old,
        "seq_lens_sum": int((new + old).sum()),
        "out_cache_loc": 1 + torch.randperm(SLOTS)[: int(new.sum())],
        "positions": torch.cat([torch.arange(o, o + length) for o, length in zip(OLD, lengths, strict=True)]),
        "extend_num_tokens": int(new.sum()),
        "extend_seq_lens": new,
        "extend_prefix_lens": old,
        "extend_start_loc": new.cumsum(0) - new,
        "extend_seq_lens_cpu": lengths,
        "extend_prefix_lens_cpu": OLD,
        "extend_logprob_start_lens_cpu": lengths,
        "top_logprobs_nums": [0] * len(PROMPTS),
        "token_ids_logprobs": [None] * len(PROMPTS),
        "rids": [str(number) for number in range(len(PROMPTS))],
        "return_logprob": True,
        "capture_hidden_mode": CaptureHiddenMode.NULL,
    }
    return ForwardBatch(**{**every, **fields})


class Runner:
    """Computes of each token what depends on all before it, like a model, and notes how many tokens it was given."""

    def __init__(self) -> None:
        pool = MHATokenToKVPool(SLOTS, 1, torch.float32, 2, 4, 3, "cpu", enable_memory_saver=False)
        self.model_runner = SimpleNamespace(token_to_kv_pool=pool, ps=SimpleNamespace(pp_size=1))
        self.num_tokens = 0

    def execute(self, found: ForwardBatch) -> LogitsProcessorOutput:
        pool, logits = self.model_runner.token_to_kv_pool, []
        self.num_tokens += len(found.input_ids)
        assert found.batch_size == len(found.rids) == len(found.req_pool_indices) == len(found.seq_lens_cpu)
        assert found.seq_lens.sum() == found.seq_lens_sum
        for start, length, old in zip(
            found.extend_start_loc, found.extend_seq_lens, found.extend_prefix_lens, strict=True
        ):
            rows = slice(int(start), int(start + length))
            assert found.positions[rows].tolist() == list(range(int(old), int(old + length)))
            states = (found.input_ids[rows] * (1 + found.positions[rows])).cumsum(0).float()
            for layer, (keys, values) in enumerate(zip(pool.k_buffer, pool.v_buffer, strict=True)):
                keys[found.out_cache_loc[rows]] = (states * (layer + 1))[:, None, None].expand(-1, 2, 4)
                values[found.out_cache_loc[rows]] = -(states * (layer + 1))[:, None, None].expand(-1, 2, 4)
            logits.append(states[-1] * torch.arange(6.0))
        return LogitsProcessorOutput(next_token_logits=torch.stack(logits))


def cache(runner: Runner) -> list[torch.Tensor]:
    pool = runner.model_runner.token_to_kv_pool
    return [*pool.k_buffer, *pool.v_buffer]


def test_repeated_prompts_are_computed_once_and_change_nothing() -> None:
    whole, once, given = Runner(), Runner(), batch()
    wanted = whole.execute(given)
    got = prompts._once(once, Runner.execute, given)
    assert torch.equal(got.next_token_logits, wanted.next_token_logits)
    assert all(map(torch.equal, cache(once), cache(whole)))
    assert (whole.num_tokens, once.num_tokens) == (16, 3 + 2 + 1 + 3)


def test_what_a_model_that_scores_says_of_them_is_spread_too() -> None:
    def scored(runner: Runner, found: ForwardBatch) -> EmbeddingPoolerOutput:
        return EmbeddingPoolerOutput(embeddings=runner.execute(found).next_token_logits[:, 1:2])

    whole, once, given = Runner(), Runner(), batch()
    wanted = scored(whole, given)
    assert torch.equal(prompts._once(once, scored, given).embeddings, wanted.embeddings)
    assert once.num_tokens < whole.num_tokens


@pytest.mark.parametrize(
    "fields",
    [
        {"return_pooled_hidden_states": True},
        {"multi_item_delimiter_indices": [torch.tensor([1])] * len(PROMPTS)},
        {"dimensions": [2] * len(PROMPTS)},
        {"forward_mode": ForwardMode.MIXED},
        {"capture_hidden_mode": CaptureHiddenMode.LAST},
        {"extend_logprob_start_lens_cpu": [0] * len(PROMPTS)},
        {"top_logprobs_nums": [0, 2] + [0] * (len(PROMPTS) - 2)},
        {"lora_ids": ["one"] + [None] * (len(PROMPTS) - 1)},
        {"global_num_tokens_cpu": [16, 4]},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_what_asks_for_more_of_every_sequence_is_computed_whole(fields: dict) -> None:
    runner = Runner()
    prompts._once(runner, Runner.execute, batch(**fields))
    assert runner.num_tokens == 16


def test_what_was_noted_of_the_tokens_computed_is_spread_over_all() -> None:
    given = batch()
    first = prompts.first_alike(given)
    kept = sorted(set(first))
    whole = torch.tensor([[100 * row + place] for row in first for place in range(len(PROMPTS[row]))])
    rows = torch.full((SLOTS, 1), -1)
    computed = prompts._tokens_of(given, kept)
    rows[: len(computed)] = whole[computed]
    prompts.copy_rows(rows, given, kept, first)
    assert torch.equal(rows[: len(whole)], whole)
    assert (rows[len(whole) :] == -1).all()
