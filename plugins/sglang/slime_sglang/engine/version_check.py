"""One weight version arriving at an engine: what has come, what it was, where it went, what is missing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from slime_sglang.engine.coverage import Coverage, Intervals
from slime_sglang.engine.load_plan import Copy, LoadPlan, Partial, ReceivedBucket
from slime_sglang.engine.writes import Memory, Write, differences
from weight_buckets.receipt import BucketNote, Fingerprint
from weight_buckets.views import BlockView, Named

_NUM_NAMED = 3  # so many names in a message, then a count


class VersionFault(Exception):
    """This version cannot become the engine's: the message names the tensor and what is wrong with it."""


class VersionCheck:
    """The books of one version on one rank of an engine, from its first bucket to its last.

    Args:
        version: the weight version.
        parameters: of SGLang's model, by name: what a version must write.
        previous: which tensors wrote each parameter in the last complete version, to name what is missing now.
    """

    def __init__(
        self,
        version: int,
        parameters: Iterable[Named],
        previous: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self.version = version
        self._previous = previous or {}
        self._fingerprint = Fingerprint()
        self._next_index = 0
        self.parameters = Memory(parameters)
        self._written = {region.name: Coverage(region.tensor.nbytes) for region in self.parameters.regions}
        self._complaints: list[str] = []
        self._differences: list[torch.Tensor] = []
        self.writers: dict[str, list[str]] = {region.name: [] for region in self.parameters.regions}
        self.partial: Partial = {}

    def receive(self, note: BucketNote, tensors: Sequence[Named]) -> None:
        """A bucket came: check that it is its turn, and read it."""
        if (note.version, note.index) != (self.version, self._next_index):
            raise VersionFault(
                f"bucket {self._next_index} of version {self.version} never arrived: "
                f"the engine got bucket {note.index} of version {note.version} instead"
            )
        self._fingerprint.add(tensors)
        self._next_index += 1

    def trace(self, bucket: ReceivedBucket, writes: Sequence[Write]) -> LoadPlan:
        """What a loader did with a bucket, of all writes while it ran."""
        sources = Memory(bucket.tensors)
        used = {name: Coverage(tensor.nbytes) for name, tensor in bucket.tensors}
        written: dict[str, Coverage] = {}
        writers: dict[str, list[str]] = defaultdict(list)
        copies, fills = [], []
        for write in writes:
            parameter = self.parameters.find(write.target)
            if parameter is None:  # scratch memory
                continue
            coverage = written.setdefault(parameter.name, Coverage(parameter.tensor.nbytes))
            coverage.add_view(write.target, parameter.address)
            if write.source is None:  # SGLang fills the padding of vocabulary-parallel weights
                fills.append(write)
                continue
            source = sources.find(write.source)
            if source is None:
                raise VersionFault(f"parameter '{parameter.name}' was written from memory outside the published bucket")
            used[source.name].add_view(write.source, source.address)
            writers[parameter.name].append(source.name)
            complaint = (
                f"tensor '{source.name}' ({source.tensor.dtype}) is not what parameter '{parameter.name}' "
                f"({parameter.tensor.dtype}) holds after loading"
            )
            copies.append(Copy(write.target, BlockView.of(write.source, bucket.memory), complaint))
        partial = {
            name: (coverage.num_bytes, coverage.covered().tolist())
            for name, coverage in used.items()
            if len(coverage.missing())
        }
        covered = {name: coverage.covered() for name, coverage in written.items()}
        return LoadPlan(bucket.contents, copies, fills, covered, writers, partial)

    def account(self, plan: LoadPlan, sources: Sequence[torch.Tensor]) -> None:
        """Book what was written, and compare each copy with its source; the device is not waited for."""
        for name, intervals in plan.written.items():
            self._written[name].add(intervals)
        for name, writers in plan.writers.items():
            self.writers[name] += writers
        if plan.copies:
            targets = [copy.target for copy in plan.copies]
            self._differences.append(differences(list(zip(targets, sources, strict=True))))
        self._complaints += [copy.complaint for copy in plan.copies]
        self.partial |= plan.partial

    def finish(self, published: Sequence[int], *, whole: bool = True) -> dict[str, Any]:
        """The receipt, after the last bucket: all tensors arrived as published, every copy holds the bits of its
        source, and every parameter was written completely.

        Args:
            published: the digest of each tensor, in the order in which they came.
            whole: False: a version that leaves the parameters as they are.

        Raises:
            VersionFault: naming what is wrong.
        """
        coverages = self._written.items() if whole else ()  # looked at while the device is still busy
        gaps = {name: ranges for name, coverage in coverages if len(ranges := coverage.missing())}
        digests = self._fingerprint.digests()
        if len(digests) != len(published):
            raise VersionFault(
                f"version {self.version} ended after {len(digests)} tensors, with digests of {len(published)}: "
                f"bucket {self._next_index - 1} was not the last"
            )
        for name, received, sent in zip(self._fingerprint.names, digests, published, strict=True):
            if received != sent:
                raise VersionFault(
                    f"tensor '{name}' arrived with digest {received:016x}, it was published with {sent:016x}"
                )
        wrong = torch.cat(self._differences).nonzero().flatten().tolist() if self._differences else []
        if wrong:
            raise VersionFault(self._complaints[wrong[0]])
        if gaps:
            named = [self._describe_gap(name, gaps[name]) for name in list(gaps)[:_NUM_NAMED]]
            more = f" and {len(gaps) - _NUM_NAMED} more" if len(gaps) > _NUM_NAMED else ""
            raise VersionFault(f"version {self.version} leaves parameters unwritten: {', '.join(named)}{more}")
        return {"version": self.version, **self._fingerprint.summary(digests)}

    def _describe_gap(self, name: str, gaps: Intervals) -> str:
        missing, total = int(np.diff(gaps).sum()), self._written[name].num_bytes
        came = dict.fromkeys(self.writers[name])
        absent = [writer for writer in dict.fromkeys(self._previous.get(name, ())) if writer not in came]
        told = [f"missing {', '.join(absent)}"] if absent else []
        told += [f"published {', '.join(came)}"] if came else []
        return f"'{name}' ({'; '.join([f'{missing} of {total} bytes', *told])})"


def unused(partial_by_rank: Sequence[Partial]) -> dict[str, int]:
    """Bytes of each tensor that no rank of the engine used: tensor and expert parallel ranks use parts."""
    missing = {}
    for name in set.intersection(*(set(partial) for partial in partial_by_rank)):
        coverage = Coverage(partial_by_rank[0][name][0])
        for partial in partial_by_rank:
            coverage.add(np.array(partial[name][1], dtype=np.int64).reshape(-1, 2))
        if num_missing := int(np.diff(coverage.missing()).sum()):
            missing[name] = num_missing
    return missing


def tensor_in_traceback(error: BaseException, tensors: Sequence[Named]) -> str | None:
    """Name of the published tensor that a failed loader was holding: SGLang's shape errors do not say it."""
    memory = Memory(tensors)
    trace, found = error.__traceback__, None
    while trace:
        for value in trace.tb_frame.f_locals.values():
            region = memory.find(value) if isinstance(value, torch.Tensor) and not value.is_meta else None
            found = region.name if region else found
        trace = trace.tb_next
    return found
