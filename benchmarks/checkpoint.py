"""What a checkpoint costs: its digests while it is written and compared, and the memory that the trainer keeps of it.

    python benchmarks/checkpoint.py cost                # about 0.7 GB, with and without digests in turns
    python benchmarks/checkpoint.py cost --layers 32    # in bf16 on a GPU where there is one
    python benchmarks/checkpoint.py memory              # 100 checkpoints of glm4-tiny; resident memory of the trainer
    python benchmarks/checkpoint.py hold                # what steps wait for, saving every step and every fourth
    python benchmarks/checkpoint.py hold --intervals 1 20 --micro-batches 16    # likewise, longer steps
    python benchmarks/checkpoint.py hold --gathered     # the same where Megatron-core gathers the optimizer's state
    python benchmarks/checkpoint.py hold --folder /dev/shm    # of a copy in host memory (`in_memory_every`)

One trainer rank in this process, without Ray or engines, saves into a run's store as a run does: shards, driver's
state, sync, manifest, rename. `--folder` (default: the system's temporary one) lies on the disk that is measured. Both
need a machine that does nothing else, or many rounds.
"""

from __future__ import annotations

import argparse
import atexit
import gc
import json
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from unittest.mock import patch

import numpy as np
import psutil
import torch
from machine import conditions
from megatron.core.dist_checkpointing.serialization import get_default_save_sharded_strategy

from slime.checkpoints import CheckpointStore, Staging, examine
from slime.config.paths import resolve
from slime.config.schema import Device, Init, LossMean, SlimeConfig
from slime.digest import DigestingFile
from slime.files import files_under
from slime.train.packing import pack
from slime.train.rank import Saving
from slime.types import TrainSample
from slime_megatron.train import checkpoint, heap, shards
from slime_megatron.train.optimizer import parts_of
from slime_megatron.train.trainer import Trainer

TINY = "pkg://slime_plugin_glm4/assets/glm4-tiny"
LARGER = {"hidden_size": 768, "intermediate_size": 2560, "num_attention_heads": 12}
PROMISED_SHARE = 0.05
"""Of a save that takes no digest."""
PROMISED_MB = 0.1
"""Growth a checkpoint, from the tenth to the last."""
COUNTS = (1, 10, 50, 100)
HOLD_TOKENS = 256
"""Of each micro-batch of a step that is held up: a second on a core, a twentieth on a GPU, which waits for kernels."""


class PlainFile(DigestingFile):
    """As it would be without digests."""

    def write(self, data: bytes) -> int:
        self._size += memoryview(data).nbytes
        return super(DigestingFile, self).write(data)


class MegatronsWriter:
    """Megatron-core's own strategy where slime's stands; its files are digested by reading them back."""

    def __new__(cls, group: object = None) -> object:
        assert group is None, "it forks processes; slime's writer alone works while the training goes on"
        strategy = get_default_save_sharded_strategy()
        strategy.written, strategy.wait = {}, lambda: None
        return strategy


@contextmanager
def no_digest(*, zip_crc: bool) -> Iterator[None]:
    """slime's writer without its digest; with torch's checksum in its place, or with none."""
    kept = patch.object(torch.serialization, "set_crc32_options") if zip_crc else nullcontext()
    with patch.object(shards, "DigestingFile", PlainFile), kept:
        yield


WAYS: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "no digest": lambda: no_digest(zip_crc=False),
    "digest, as slime saves": nullcontext,
    "torch's checksum, that nothing compares": lambda: no_digest(zip_crc=True),
    "Megatron's writer, files read back": lambda: patch.object(checkpoint, "ShardWriter", MegatronsWriter),
}


def trainer_of(model: str) -> Trainer:
    """One rank after one supervised step, so that the optimizer has its moments."""
    cfg = SlimeConfig()
    if torch.cuda.is_available():
        cfg.cluster.device, cfg.train.megatron = Device.cuda, {"bf16": True}
    cfg.model.family, cfg.model.path, cfg.model.init, cfg.run.num_steps, cfg.sft.num_steps = (
        "glm4",
        model,
        Init.random,
        1,
        1,
    )
    trainer = Trainer(cfg, 0, 1, f"{tempfile.mkdtemp()}/meeting", 0)
    trainer.init_weights()
    step(trainer, tokens=8)
    return trainer


def step(trainer: Trainer, tokens: int, micro_batches: int = 1) -> None:
    """One supervised step, of a sample of that many tokens in each micro-batch."""
    sample = TrainSample(tokens=np.arange(tokens) % 64, loss_mask=np.ones(tokens // 2, dtype=np.int64))
    options = {"align": trainer.packing_align, "max_tokens": tokens, "loss_mean": LossMean.token}
    trainer.train(pack([sample] * micro_batches, num_dp=1, num_optimizer_steps=1, **options), 1, "sft")


def save(trainer: Trainer, store: CheckpointStore, step: int) -> float:
    """Seconds of one save."""
    start = time.perf_counter()
    with store.saving(step, {"step": step}) as staging:
        staging.written |= trainer.save(staging.path)
    return time.perf_counter() - start


def larger(folder: Path, layers: int) -> Trainer:
    model = folder / "model"
    model.mkdir()
    config = json.loads((resolve(TINY) / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | LARGER | {"num_hidden_layers": layers}))
    return trainer_of(str(model))


def hold(folder: Path, rounds: int, layers: int, gathered: bool, intervals: Sequence[int], micro_batches: int) -> None:
    """What steps wait for, as a run has them: a checkpoint is begun after a step, once the one before is published, and
    published after the step in which its files were written. Each round has as many steps without checkpoints."""
    trainer, store = larger(folder, layers), CheckpointStore(folder / "checkpoints", keep=2)
    for part in parts_of(trainer.optimizer.megatron) if gathered else ():
        del part.sharded_param_state_fully_reshardable
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run = _Run(trainer, store, micro_batches)
    run.steps(3, 1)
    first = run.begun[0]
    longest, alone, within = max(intervals), list[float](), {interval: list[float]() for interval in intervals}
    run.forget()
    for _ in range(rounds):
        alone.append(run.steps(longest, 0))
        for interval in intervals:
            within[interval].append(run.steps(longest, interval))
    size = sum(path.stat().st_size for path in files_under(store.all()[-1].path)) / 1e9
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 / 1e9
    where = f"{size:.2f} GB in {folder.parent}, {rounds} rounds of {longest} steps"
    print(f"{conditions()}; {where}: median, fastest; {'gathered' if gathered else 'own slices'}\n")
    print(f"a step waits for the copy           {_times(run.begun)}{first:>8.3f} s the first time")
    print(f"for files of the checkpoint before  {_times(run.waited)}{max(run.waited):>8.3f} s at the most")
    print(f"for the name of what is written     {_times(run.published)}")
    print(f"a step alone                        {_times(run.alone)}")
    print(f"a step in which files are written   {_times(run.beside)}")
    print(f"host memory grew by {grown:.2f} GB\n")
    for interval, seconds in within.items():
        more = [with_them - without for with_them, without in zip(seconds, alone, strict=True)]
        share = statistics.median(more) / statistics.median(alone)
        every = [each * interval / longest for each in more]
        print(f"every {interval:>2} steps: a checkpoint costs   {_times(every)}{share:>+8.1%} of the steps")


class _Run:
    """Steps of a trainer and checkpoints between them, as `slime.learner` orders them."""

    def __init__(self, trainer: Trainer, store: CheckpointStore, micro_batches: int) -> None:
        self._trainer, self._store, self._micro_batches, self._number = trainer, store, micro_batches, 0
        self._saving: tuple[Saving, Staging, ExitStack] | None = None
        self.forget()

    def forget(self) -> None:
        self.begun, self.waited, self.published = list[float](), list[float](), list[float]()
        self.alone, self.beside = list[float](), list[float]()

    def steps(self, count: int, interval: int) -> float:
        """Seconds of `count` steps, a checkpoint before every `interval`th (0: none), until the last is published."""
        start = time.perf_counter()
        for number in range(count):
            if interval and number % interval == 0:
                self._settle()
                self._save()
            seconds, began = self.beside if self._saving else self.alone, time.perf_counter()
            step(self._trainer, HOLD_TOKENS, self._micro_batches)
            seconds.append(time.perf_counter() - began)
            if self._saving and self._saving[0].is_done:
                self._settle()
        self._settle()
        return time.perf_counter() - start

    def _save(self) -> None:
        self._number += 1
        with ExitStack() as stack:
            staging = stack.enter_context(self._store.saving(self._number, {"step": self._number}))
            start = time.perf_counter()
            saving = self._trainer.begin_save(staging.path)
            self.begun.append(time.perf_counter() - start)
            self._saving = saving, staging, stack.pop_all()

    def _settle(self) -> None:
        if self._saving is None:
            return
        (saving, staging, stack), self._saving = self._saving, None
        start = time.perf_counter()
        with stack:
            staging.written |= saving.wait()
            written = time.perf_counter()
        self.waited.append(written - start)
        self.published.append(time.perf_counter() - written)


def cost(folder: Path, rounds: int, layers: int) -> None:
    """Every way in each round, so that what else the machine does meets all of them."""
    trainer, store = larger(folder, layers), CheckpointStore(folder / "checkpoints", keep=1)
    save(trainer, store, 1)  # takes memory, and finds the code
    seconds: dict[str, list[float]] = {name: [] for name in WAYS}
    compared = []
    for round_number in range(rounds):
        for number, (name, way) in enumerate(WAYS.items()):
            with way():
                seconds[name].append(save(trainer, store, 2 + round_number * len(WAYS) + number))
            if name.startswith("digest"):
                [newest] = store.all()
                start = time.perf_counter()
                examine(files_under(newest.path))
                compared.append(time.perf_counter() - start)
                size = sum(path.stat().st_size for path in files_under(newest.path)) / 1e9
    print(f"{conditions()}; {size:.2f} GB in {folder}, {rounds} rounds: median, fastest\n")
    base = seconds["no digest"]
    for name, times in seconds.items():
        shares = [100 * (of(times) / of(base) - 1) for of in (statistics.median, min)]
        print(f"{name:<42}{_times(times)}{shares[0]:>+8.1f} %{shares[1]:>+8.1f} %")
    print(f"{'reading it all, on one core':<42}{_times(compared)}{size / min(compared):>8.1f} GB/s")
    share = min(seconds["digest, as slime saves"]) / min(base) - 1  # other work of the machine only adds
    print(f"promised: a digest costs under {PROMISED_SHARE:.0%}: {'kept' if share < PROMISED_SHARE else 'MISSED'}")


def _times(times: Sequence[float]) -> str:
    return f"{statistics.median(times):>8.3f} s{min(times):>8.3f} s"


def memory(folder: Path, num_saves: int, keep_heap: bool) -> None:
    """Resident memory by number of checkpoints."""
    trainer, store = trainer_of(TINY), CheckpointStore(folder / "checkpoints", keep=1)
    seen = {}
    with patch.object(heap, "release") if keep_heap else nullcontext():
        for count in range(1, num_saves + 1):
            save(trainer, store, count)
            seen[count] = psutil.Process().memory_info().rss / 1e6
    growth = (seen[num_saves] - seen[10]) / (num_saves - 10)
    print(f"{conditions()}; checkpoints of glm4-tiny, heap {'kept' if keep_heap else 'returned after each'}\n")
    for count in sorted({*COUNTS, num_saves} & seen.keys()):
        print(f"after {count:>4}{seen[count]:>10.1f} MB resident")
    kept = "kept" if growth < PROMISED_MB else "MISSED"
    print(f"from the 10th on {growth:.2f} MB a checkpoint, promised {PROMISED_MB:g}: {kept}")


def main() -> None:
    parser = argparse.ArgumentParser(description="What a checkpoint costs.")
    parser.add_argument("what", choices=["cost", "memory", "hold"])
    parser.add_argument("--folder", type=Path, help="where checkpoints are written")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--layers", type=int, default=8, help="of the model whose cost is measured")
    parser.add_argument("--intervals", type=int, nargs="+", default=[1, 4], help="steps from checkpoint to checkpoint")
    parser.add_argument("--micro-batches", type=int, default=1, help="of each step that is held up")
    parser.add_argument("--saves", type=int, default=100)
    parser.add_argument("--gathered", action="store_true", help="by Megatron-core, on every rank, before it is copied")
    parser.add_argument("--keep-heap", action="store_true", help="as it was before slime returned it")
    arguments = parser.parse_args()
    gc.collect()
    gc.freeze()  # as `slime.imports.importing` in a trainer's process: Megatron-core collects garbage in each save
    atexit.register(gc.unfreeze)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        if arguments.what == "cost":
            cost(Path(folder), arguments.rounds, arguments.layers)
        elif arguments.what == "hold":
            steps = arguments.intervals, arguments.micro_batches
            hold(Path(folder), arguments.rounds, arguments.layers, arguments.gathered, *steps)
        else:
            memory(Path(folder), arguments.saves, arguments.keep_heap)


if __name__ == "__main__":
    main()
