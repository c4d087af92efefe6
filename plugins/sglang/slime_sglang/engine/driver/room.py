"""The longest sequence of a run, compared with what running engines take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from slime.config.schema import Role, SlimeConfig
from slime.engines.limits import KEPT_BACK, longest_sequence, num_drafted, room
from slime.errors import SlimeError
from slime_sglang.engine.driver.client import SGLangClient


async def require_room(engines: Sequence[SGLangClient], cfg: SlimeConfig) -> None:
    """Raise SlimeError where a sequence may be longer than an engine takes: its pool's size is known to it alone."""
    for engine in engines:
        if problem := room_problem(engine.url, await engine.server_info(), cfg):
            raise problem


def room_problem(url: str, info: Mapping[str, Any], cfg: SlimeConfig) -> SlimeError | None:
    """Of one engine, by its `/server_info`."""
    longest, key = longest_sequence(cfg)
    context = room(info["max_req_input_len"] + KEPT_BACK, num_drafted=num_drafted(info))
    pool = info["max_total_num_tokens"]
    if info["disaggregation_mode"] == Role.decode.value:  # kept free: a longer one would wait for ever
        pool -= info["num_reserved_decode_tokens"]
    fits = min(context, room(pool, page_size=info["page_size"]))
    if longest <= fits:
        return None
    what = f"takes sequences of at most {fits} tokens, but prompt and response may have {longest}"
    todo = f"Lower rollout.max_prompt_tokens or {key}, or give it memory (rollout.sglang.mem_fraction_static)."
    return SlimeError(what, where=f"engine {url}", todo=todo)
