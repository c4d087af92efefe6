"""That `room` is what SGLang takes, to the token."""

import asyncio
from types import SimpleNamespace

import pytest

from slime.compose.compose import compose
from slime.engine_client.client import FinishReason
from slime.engines.limits import longest_sequence, num_drafted, room
from slime.errors import SlimeError
from slime_sglang.engine.driver.room import require_room
from slime_testing.engines import hf_tensors
from slime_testing.publishing import publish
from tests.engine_client.scripted_engine import connected

CONTEXT = 512
"""Of `tiny_model`."""
POOL = 20000
"""Of the shared engine, by `cpu_config`."""


@pytest.fixture(scope="module")
def served(endpoint, hf_model, tiny_model):
    publish(hf_tensors(hf_model(tiny_model)), [endpoint], 4, 1 << 24)
    return endpoint


def use(endpoint, function):
    async def run():
        async with connected(endpoint) as client:
            return await function(client)

    return asyncio.run(run())


def num_generated(served, num_input, num_wanted):
    """Tokens that come of a request for `num_wanted`, which nothing but a limit ends."""
    sampling = {"max_new_tokens": num_wanted, "ignore_eos": True}
    completion = use(served, lambda client: client.generate([5] * num_input, sampling))
    assert completion.finish_reason is FinishReason.LENGTH
    return len(completion.tokens)


@pytest.mark.slow
@pytest.mark.parametrize("num_input", [6, 256, room(CONTEXT) - 1])
def test_every_part_of_the_longest_response_can_be_asked_for(served, num_input):
    """256 tokens of prompt and 250 of response: from the first on, from the middle, and the last one alone."""
    rest = room(CONTEXT) - num_input
    assert num_generated(served, num_input, rest) == rest


@pytest.mark.slow
def test_one_token_more_could_not_be_continued(served):
    with pytest.raises(SlimeError, match=r"Input length \(506 tokens\) exceeds the maximum allowed length"):
        num_generated(served, room(CONTEXT), 1)


@pytest.mark.slow
@pytest.mark.parametrize("page_size", [1, 2, 16, 64])
def test_every_part_of_the_longest_response_fits_a_pool_of_pages(page_size):
    """By SGLang's own bound, called as it is: its allocator of pages needs a GPU."""
    from sglang.srt.managers.scheduler import Scheduler

    def num_allowed(pool, num_input, num_wanted):
        limits = {
            "max_total_num_tokens": pool // page_size * page_size,
            "max_req_len": pool // page_size * page_size - 1,
        }
        scheduler = SimpleNamespace(page_size=page_size, max_new_tokens_limit=None, **limits)
        params = SimpleNamespace(max_new_tokens=num_wanted, min_new_tokens=0)
        Scheduler.init_req_max_new_tokens(
            scheduler, SimpleNamespace(sampling_params=params, origin_input_ids=[0] * num_input)
        )
        return params.max_new_tokens

    for pool in range(300, 300 + page_size):
        fits = room(pool, page_size=page_size)
        assert all(num_allowed(pool, begun, fits - begun) == fits - begun for begun in range(1, fits))
        more = fits + 1
        assert page_size <= 2 or any(num_allowed(pool, begun, more - begun) < more - begun for begun in range(1, more))


@pytest.mark.slow
def test_an_engine_that_takes_less_is_named(served, cfg):
    """What its pool holds is not in the config: SGLang finds it by the memory that is free."""
    cfg.rollout.max_prompt_tokens = room(CONTEXT) - 16
    use(served, lambda client: require_room([client], cfg))
    cfg.rollout.max_prompt_tokens += 1
    with pytest.raises(SlimeError, match=f"engine {served}: takes sequences of at most 506 tokens, but .* have 507"):
        use(served, lambda client: require_room([client], cfg))
    assert use(served, lambda client: client.server_info())["max_total_num_tokens"] == POOL


@pytest.fixture
def cfg():
    """16 tokens a response, and no limits of engines."""
    cfg = compose(["+model=glm4-tiny", "+cluster=local"])
    cfg.rollout.sampling.max_response_tokens = cfg.eval.sampling.max_response_tokens = 16
    return cfg


def test_the_longest_sequence_counts_evaluations_where_there_is_one(cfg):
    cfg.rollout.max_prompt_tokens, cfg.eval.sampling.max_response_tokens = 100, 40
    assert longest_sequence(cfg) == (140, "eval.sampling.max_response_tokens")
    cfg.eval.path = None
    assert longest_sequence(cfg) == (116, "rollout.sampling.max_response_tokens")


def test_drafts_need_room_behind_the_last_token():
    tree = {"speculative_eagle_topk": 2, "speculative_num_steps": 5, "speculative_num_draft_tokens": 8}
    assert room(512, num_drafted=num_drafted(tree)) == 502
    assert room(512, num_drafted=num_drafted({"speculative_algorithm": None})) == 506
