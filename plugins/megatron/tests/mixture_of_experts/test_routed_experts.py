"""What engines tell of their experts: checked row by row, kept through buffer and checkpoint, laid beside tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from slime import driver_state
from slime.compose.compose import compose
from slime.config.schema import LossMean, Role
from slime.errors import SlimeError
from slime.reward.judge import lean
from slime.sampling.buffer import group_of, state_of
from slime.sampling.samples import missing_shares
from slime.segments import Rows, Segment, WeightSpan
from slime.topology.topology import read_topology
from slime.train.packing import pack
from slime.types import Group, Prompt, Sample, TrainSample
from slime_megatron.mixture_of_experts.replay import ROUTED_EXPERTS, RoutedExperts
from slime_sglang.engine.driver.batched_requests import _parts, _Waiting

OF_FEW = RoutedExperts(layers=(1, 2, 3), num_layers=4, num_experts=8, topk=2)
TOKENS = list(range(20, 32))


def told(recording: RoutedExperts, num_rows: int) -> np.ndarray:
    """[num_rows, num_layers, topk] as SGLang's layers note it: different experts, and zeros of layers without any."""
    generator = np.random.default_rng(1)
    noise = generator.random((num_rows, recording.num_layers, recording.num_experts))
    experts = noise.argsort(axis=-1)[..., : recording.topk].astype("<i4")
    experts[:, [layer for layer in range(recording.num_layers) if layer not in recording.layers]] = 0
    return experts


def read(recording: RoutedExperts, experts: np.ndarray, tokens: list[int]) -> np.ndarray:
    told = experts[:, list(recording.layers)].astype(recording.dtype).tobytes()
    rows = recording.read({ROUTED_EXPERTS: told}, tokens)
    assert rows is not None
    return array(rows)


def array(rows: Rows) -> np.ndarray:
    return np.frombuffer(rows.data, rows.dtype).reshape(rows.shape)


def test_layers_with_experts_are_kept_in_a_byte_each() -> None:
    experts = told(OF_FEW, len(TOKENS) - 1)
    rows = read(OF_FEW, experts, TOKENS)
    assert (rows.dtype.str, rows.shape) == ("|u1", (len(TOKENS) - 1, 3, 2))
    assert np.array_equal(rows, experts[:, 1:])
    assert rows[0].nbytes == OF_FEW.token_bytes
    assert OF_FEW.read({}, TOKENS) is None, "an answer that was aborted before an engine began"


def test_numbers_above_a_byte_are_kept_whole() -> None:
    many = RoutedExperts(layers=(0,), num_layers=1, num_experts=384, topk=8)
    experts = told(many, 50)
    assert experts.max() > 255
    assert np.array_equal(read(many, experts, list(range(51))), experts)


@pytest.mark.parametrize("fault", [[3, 3], [-1, 2], [8, 2], [0, 0]], ids=["twice", "below", "above", "unwritten"])
def test_a_row_that_is_no_choice_of_experts_is_left_to_the_router(fault: list[int]) -> None:
    experts = told(OF_FEW, len(TOKENS) - 1)
    experts[4, 2] = fault  # in one layer
    rows = read(OF_FEW, experts, TOKENS)
    assert not rows[4].any(), "of no layer"
    assert rows.any(axis=(1, 2)).sum() == len(TOKENS) - 2


def test_a_long_run_of_equal_rows_is_stale_unless_its_tokens_are_equal() -> None:
    deep = RoutedExperts(layers=tuple(range(8)), num_layers=8, num_experts=64, topk=4)
    experts = told(deep, 40)
    experts[10:30] = experts[10]
    assert np.flatnonzero(~read(deep, experts, list(range(41))).any(axis=(1, 2))).tolist() == list(range(11, 30))
    assert read(deep, experts, [7] * 41).any(axis=(1, 2)).all()
    shallow = RoutedExperts(layers=tuple(range(7)), num_layers=7, num_experts=64, topk=4)
    assert read(shallow, experts[:, :7], list(range(41))).any(axis=(1, 2)).all(), "it may be chance"


@pytest.mark.parametrize("num_rows", [len(TOKENS) - 2, len(TOKENS)])
def test_rows_of_other_tokens_are_refused(num_rows: int) -> None:
    with pytest.raises(SlimeError, match="11 tokens of 3 layers with 2 experts take 66"):
        read(OF_FEW, told(OF_FEW, num_rows), TOKENS)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (["+model=glm4-tiny"], "does nothing: the model has no mixture of experts"),
        (["+model=glm4-moe-tiny", "rollout.sglang.speculative_algorithm=EAGLE"], "drafted tokens"),
        (["+model=glm4-moe-tiny", "rollout.sglang.enable_hierarchical_cache=true"], "host memory"),
        (["+model=glm4-moe-tiny", "algo=sft"], "does nothing without algo=grpo"),
    ],
)
def test_what_cannot_be_replayed_is_refused(settings: list[str], reason: str) -> None:
    with pytest.raises(SlimeError, match=f"train.routing_replay: .*{reason}"):
        compose([*settings, "+cluster=local", "train.routing_replay=true"])


@pytest.mark.parametrize("key", ["train.routing_replay", "observe.routing"])
def test_both_engines_of_a_pair_note_experts(key: str) -> None:
    cfg = compose(["+model=glm4-moe-tiny", "+cluster=local-pd", f"{key}=true"])
    engines = read_topology(cfg).engines
    assert {engine.role: engine.fields["enable_return_routed_experts"] for engine in engines} == {
        Role.prefill: True,
        Role.decode: True,
    }


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (["+model=glm4-tiny"], "does nothing: the model has no mixture of experts"),
        (["+model=glm4-moe-tiny", "rollout.sglang.speculative_algorithm=EAGLE"], "drafted tokens"),
        (["+model=glm4-moe-tiny", "algo=sft"], "does nothing without algo=grpo"),
    ],
)
def test_what_cannot_be_watched_is_refused_by_its_own_key(settings: list[str], reason: str) -> None:
    with pytest.raises(SlimeError, match=f"observe.routing: .*{reason}"):
        compose([*settings, "+cluster=local", "observe.routing=true"])


def segment(num_rows: int) -> Segment:
    rows = Rows("|u1", (num_rows, 3, 2), bytes(range(1, 6 * num_rows + 1)))
    return Segment((5, 6), [7, 8, 9], [-0.1] * 3, [1] * 3, [WeightSpan(2, 3)], {ROUTED_EXPERTS: rows})


def test_rows_go_through_a_checkpoint_and_not_to_rewards() -> None:
    prompt = Prompt("0/1", (), (5, 6))
    group = Group(prompt, [Sample(prompt, 0, [segment(4)])])
    assert group_of(driver_state.loads(driver_state.dumps(state_of(group)))) == group
    assert lean(group.samples[0]).segments[0].recorded == {}


def test_rows_of_tokens_that_are_cut_off_go_with_them() -> None:
    cut = segment(4)
    cut.cut(1)
    cut.check()
    rows = cut.recorded[ROUTED_EXPERTS]
    assert rows.shape == (3, 3, 2)
    assert rows.data == segment(4).recorded[ROUTED_EXPERTS].data[:18]


def train_sample(num_tokens: int, rows: np.ndarray | None) -> TrainSample:
    recorded = {} if rows is None else {ROUTED_EXPERTS: rows}
    return TrainSample(np.arange(num_tokens), np.ones(num_tokens - 1, np.float32), recorded=recorded)


def test_rows_lie_beside_their_tokens_in_a_pack() -> None:
    long = np.arange(1, 25, dtype=np.uint8).reshape(4, 3, 2)
    samples = [train_sample(5, long), train_sample(3, None), train_sample(4, long[:2])]
    [batch] = pack(samples, num_dp=1, align=4, max_tokens=32, loss_mean=LossMean.token)
    [[micro]] = batch.micro_batches
    found = micro.recorded[ROUTED_EXPERTS]
    assert found.shape == (len(micro.tokens), 3, 2)
    for number, start in zip(micro.sample_ids, micro.cu_seqlens, strict=False):
        rows = samples[number].recorded.get(ROUTED_EXPERTS, long[:0])
        end = micro.cu_seqlens[list(micro.sample_ids).index(number) + 1]
        assert np.array_equal(found[start : start + len(rows)], rows)
        assert not found[start + len(rows) : end].any()


def test_missing_rows_are_counted_and_stop_a_run() -> None:
    rows = np.ones((200, 3, 2), np.uint8)
    rows[7] = 0
    name = f"rollout/{ROUTED_EXPERTS}_missing_share"
    assert missing_shares([train_sample(201, rows)], [ROUTED_EXPERTS]) == {name: pytest.approx(1 / 200)}
    assert missing_shares([], []) == {}
    with pytest.raises(SlimeError, match=r"engines recorded no routed_experts of 1\.5% of the tokens"):
        missing_shares([train_sample(201, rows), train_sample(3, None)], [ROUTED_EXPERTS])


def test_requests_that_ask_for_rows_are_sent_apart_from_those_that_do_not() -> None:
    def body(**fields: Any) -> _Waiting:
        return _Waiting({"input_ids": [1], "sampling_params": {}, **fields}, None)  # type: ignore[arg-type]

    asked = [body(), body(return_routed_experts=True), body(return_routed_experts=True), body()]
    assert [len(part) for part in _parts(asked)] == [1, 2, 1]
