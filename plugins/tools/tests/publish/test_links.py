"""Bytes that links carry on publish. Who owns what is held against Megatron's own modules in `test_parameters`."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from slime.compose.compose import examine
from slime.plan.model import read_model
from slime.plugins import load
from slime.topology.links import Link, Medium, Verb
from slime_tools.publish.part import Publishing, busiest


def links_of(*words: str) -> Sequence[Link]:
    composed = examine(words)
    assert composed.problems == []
    (part,) = (part for part in read_model(composed, load()).parts if isinstance(part, Publishing))
    return part.links


def into(links: Sequence[Link], target: str, verb: Verb) -> int:
    return sum(link.num_bytes for link in links if (link.target, link.verb) == (target, verb))


NINE = 18_800_558_080
"""Bytes of GLM-4-9B in bf16, twice its published number of parameters."""


def test_colocated_ranks_gather_what_they_do_not_own_and_hand_over_the_whole() -> None:
    """TP 2, CP 2, DP 2: ranks 0 and 1 own half of what is cut, rank 0 besides the norms; the norms are everywhere, so
    nobody sends them."""
    links = links_of("+model=glm4-9b", "+cluster=h100x8")
    norms = 2 * 4096 * (4 * 40 + 1)
    cut = (NINE - norms) // 2
    received = [into(links, f"trainer {rank}", Verb.gather) for rank in range(8)]
    assert received[:2] == [cut, cut]
    assert received[2:] == [2 * cut] * 6
    handed = [link for link in links if link.verb is Verb.hand_over]
    assert [(link.source, link.target) for link in handed[:3]] == [
        ("trainer 0", "default-0 rank 0"),
        ("trainer 1", "default-0 rank 1"),
        ("trainer 2", "default-1 rank 0"),
    ]
    assert {(link.over, link.num_bytes) for link in handed} == {(Medium.device, NINE)}


def test_disaggregated_engines_take_it_from_rank_0() -> None:
    links = links_of("+model=glm4-9b", "+cluster=h100x8-split")
    assert {link.target for link in links if link.verb is Verb.gather} == {"trainer 0"}
    handed = [(link.source, link.target) for link in links if link.verb is Verb.hand_over]
    assert handed[:2] == [("trainer 0", "default-0 rank 0"), ("default-0 rank 0", "default-0 rank 1")]
    assert all(link.num_bytes == NINE for link in links if link.verb is Verb.hand_over)


def test_a_disk_takes_it_once_and_gives_it_to_every_process_of_an_engine() -> None:
    links = links_of("+model=glm4-9b", "+cluster=h100x8-split", "weights.transport=disk")
    handed = [(link.source, link.target) for link in links if link.verb is Verb.hand_over]
    assert handed[0] == ("trainer 0", "disk")
    assert handed[1:] == [("disk", f"default-{number} process 0") for number in range(len(handed) - 1)]
    assert {(link.over, link.num_bytes) for link in links if link.verb is Verb.hand_over} == {(Medium.disk, NINE)}


@pytest.mark.parametrize(("recipe", "hosts"), [("deepseek-r1@h100x128", 16), ("glm4.5@h100x64", 8)])
def test_a_ring_enters_each_host_once(recipe: str, hosts: int) -> None:
    model, cluster = recipe.split("@")
    links = links_of(f"+model={model}", f"+cluster={cluster}")
    assert sum(link.over is Medium.network for link in links) == hosts
    assert {link.over for link in links if link.verb is Verb.hand_over} == {Medium.device}


def test_fp8_halves_what_engines_take() -> None:
    """684.5 G parameters, of which embeddings, head and norms stay in bf16; the prediction layer stays at home. Shards
    are quantised before they are gathered; what the receiving rank owns, half a percent, is not sent to it."""
    alone = "rollout.sglang.speculative_algorithm=null"  # no engine drafts with it
    found = busiest(links_of("+model=deepseek-r1", "+cluster=h100x128", alone))
    assert found[Verb.hand_over, Medium.device] / 1e9 == pytest.approx(671.0 + 2 * 7168 * 129280 / 1e9, rel=0.005)
    assert found[Verb.gather, Medium.network] / 1e9 == pytest.approx(671.0 + 2 * 7168 * 129280 / 1e9, rel=0.01)


def test_engines_on_this_host_map_its_memory() -> None:
    links = links_of("+model=glm4-tiny", "+cluster=local")
    assert [(link.source, link.over) for link in links] == [("trainer 0", Medium.host)]
