"""Versions that go into a model as the one before did, and what must make them go through the loader again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pytest
import torch

from slime_sglang.engine.incoming import IncomingVersion
from slime_sglang.engine.load_plan import ReceivedBucket
from slime_sglang.engine.version_check import VersionFault
from weight_buckets.bucket import Bucket
from weight_buckets.receipt import BucketNote, tensor_digest

Tensors = Mapping[str, torch.Tensor]


class Model(torch.nn.Module):
    """Two projections in one parameter, and an embedding that is padded."""

    def __init__(self) -> None:
        super().__init__()
        self.both = torch.nn.Parameter(torch.full((6, 4), torch.nan))
        self.embedding = torch.nn.Parameter(torch.full((8, 4), torch.nan, dtype=torch.bfloat16))
        self.scale = torch.ones(3)
        self.others = torch.ones(2, 3, dtype=torch.complex64)
        self.register_buffer("flag", torch.tensor(data=True))
        self.unused = torch.empty(3, device="meta")

    def load(self, tensors: Tensors) -> None:
        if "first" in tensors:
            self.both.data[:2].copy_(tensors["first"])
        if "second" in tensors:
            self.both.data[2:].copy_(tensors["second"])
        if "embedding" in tensors:
            self.embedding.data[:5].copy_(tensors["embedding"])
            self.embedding.data[5:].fill_(0.5)


class Scaled(Model):
    """Loading makes more than parameters."""

    def load(self, tensors: Tensors) -> None:
        super().load(tensors)
        self.scale = self.embedding.detach().float().amax(0)


class Derived(Scaled):
    """And there is SGLang's way to make that without loading."""

    def post_load_weights(self) -> None:
        super().load({})


class Overwriting(Model):
    """The last of two writes counts."""

    def load(self, tensors: Tensors) -> None:
        if "embedding" in tensors:
            self.embedding.data.fill_(0.5)
        super().load(tensors)


def version(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"first": (2, 4), "second": (4, 4), "embedding": (5, 4)}
    tensors = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    return tensors | {"embedding": tensors["embedding"].bfloat16()}


@dataclass
class Engine:
    """A model that gets versions in buckets of one tensor."""

    model: Model
    may_replay: bool = True
    loaded: list[str] = field(default_factory=list)

    def publish(self, number: int, tensors: Tensors, corrupt: Callable[[torch.Tensor], object] = len) -> list[str]:
        """Returns the tensors that the loader was asked to load; `corrupt` gets each bucket's memory on its way."""
        self.loaded = []
        incoming = IncomingVersion(self.model, number, self.model.named_parameters(), may_replay=self.may_replay)
        for index, (name, tensor) in enumerate(tensors.items()):
            bucket = Bucket(1024, torch.device("cpu"))
            bucket.fill([(name, tensor)])
            corrupt(bucket.memory)
            arrived = ReceivedBucket.of(bucket.memory, bucket.header)
            last = index + 1 == len(tensors)
            digests = [tensor_digest(each) for each in tensors.values()] if last else []
            note = BucketNote(number, index, last, digests)
            incoming.take(note, arrived, lambda arrived=arrived: self.load(dict(arrived.tensors)))
            bucket.memory.fill_(255)  # the next one comes
        assert incoming.finish(note)["tensors"] == len(tensors)
        return self.loaded

    def load(self, tensors: Tensors) -> None:
        self.loaded += tensors
        self.model.load(tensors)


def check(model: Model, tensors: Tensors) -> None:
    assert torch.equal(model.both, torch.cat([tensors["first"], tensors["second"]]))
    assert torch.equal(model.embedding[:5], tensors["embedding"])
    assert (model.embedding[5:] == 0.5).all()
    if isinstance(model, Scaled):
        assert torch.equal(model.scale, model.embedding.float().amax(0))


@pytest.mark.parametrize(
    ("kind", "by_loader"),
    [(Model, False), (Derived, False), (Scaled, True), (Overwriting, True)],
)
def test_the_loader_is_asked_again_if_it_does_more_than_copying(kind: type[Model], by_loader: bool) -> None:
    engine = Engine(kind())
    every = list(version(0))
    for number in (1, 2, 3):
        with torch.no_grad():  # memory that was released comes back with anything in it
            engine.model.both.fill_(torch.nan)
            engine.model.embedding.fill_(torch.nan)
        assert engine.publish(number, version(number)) == (every if number == 1 or by_loader else [])
        check(engine.model, version(number))


def test_an_engine_whose_weights_move_keeps_its_loader() -> None:
    engine = Engine(Model(), may_replay=False)
    for number in (1, 2):
        assert engine.publish(number, version(number)) == list(version(number))


def test_other_buckets_are_learnt_anew() -> None:
    engine = Engine(Model())
    engine.publish(1, version(1))
    reordered = {name: version(2)[name] for name in ("first", "embedding", "second")}
    assert engine.publish(2, reordered) == ["embedding", "second"]
    check(engine.model, version(2))
    assert engine.publish(3, reordered) == list(reordered)
    assert engine.publish(4, reordered) == []
    check(engine.model, version(2))
    backwards = dict(reversed(version(5).items()))
    assert engine.publish(5, backwards) == list(backwards)
    assert engine.publish(6, backwards) == []
    check(engine.model, version(5))


def test_parameters_that_moved_are_learnt_anew() -> None:
    engine = Engine(Model())
    engine.publish(1, version(1))
    engine.model.both.data = engine.model.both.data.clone()
    assert engine.publish(2, version(2)) == list(version(2))
    check(engine.model, version(2))
    assert engine.publish(3, version(3)) == []
    check(engine.model, version(3))


def test_a_version_on_known_ways_is_checked_as_any() -> None:
    engine = Engine(Model())
    engine.publish(1, version(1))
    with pytest.raises(VersionFault, match="tensor 'first' arrived with digest"):
        engine.publish(2, version(2), corrupt=lambda memory: memory[5].bitwise_xor_(1))
    few = {name: tensor for name, tensor in version(3).items() if name != "embedding"}
    with pytest.raises(VersionFault, match=r"'embedding' \(64 of 64 bytes; missing embedding\)"):
        engine.publish(3, few)
    assert engine.publish(4, version(4)) == []
    check(engine.model, version(4))
