"""A step of slime's laptop run beside a step of TRL's GRPOTrainer, on the same model, prompts and batch.

    pip install --no-deps --requirement requirements/trl.txt  # beside slime: no package is replaced
    python benchmarks/against_trl.py                          # trains the model on demonstrations first, a minute
    python benchmarks/against_trl.py --model RUN/export --steps 30 --rounds 3
    python benchmarks/against_trl.py --device cuda --model models/SmolLM2 --out FOLDER +cluster=h100x1
    python benchmarks/against_trl.py --device cuda --model models/SmolLM2 --out FOLDER --trl-vllm 0.3  # see peers.sh

Both start from the same exported folder, take 32 prompts x 8 samples of at most 16 tokens a step, learn by GRPO in
float32 and neither evaluate nor save. They run one after the other, in turn, a fresh process a round; the first steps
are left out as warm-up. TRL generates with transformers in its own process, its way without a GPU; it computes with a
thread for each core unless `--trl-threads` says otherwise. slime has two engines and two trainer ranks with a thread
each, which take turns.

With `--device cuda` both have one GPU, one after the other, for `--steps` steps or `--limit` seconds each, and the task
of the recipe that is named, word problems by default: see `beside.py` for what is reported. TRL then computes in bf16
beside float32 weights, as slime does, and generates with vLLM in its own process (`--trl-vllm` and the share of the
GPU's memory that vLLM takes; TRL 1.16 wants vLLM 0.22 to 0.31, of which 0.24.0 goes with torch 2.11), or with
transformers: one `generate` for all samples, or continuous batching with `--trl-continuous`. No old log-probs are
computed, since each step is one update: vLLM's are not corrected, as slime's engine's are not. `--trl-attention` and
`--trl-set` name more of its settings; with `--alone` slime does not run, and several settings of TRL can be put into
one table: see `beside.py`. `FOLDER` keeps rows and output.

Wall times of a busy machine say little, so processor time is printed too: of every process of the two, user and system,
from the end of the first step counted to that of the last.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import beside
import psutil
from machine import conditions
from trl_process import train_with_trl

from slime.compose.compose import compose
from slime.observe.metrics import read_rows

POLL_S = 0.02
WARM_UP = 2
"""Steps of each process that are not counted: the first compiles, fills caches and starts what starts late."""
PROMISED = 1.0
MODEL = ["+model=glm4-tiny", "+cluster=local2"]
LAPTOP = [*MODEL, "rollout.engines.default.devices=2"]
OWN = ["eval.path=null", "train.checkpoint.interval=null", "run.progress=false"]
RUN = ["+model=smollm2-135m", "+cluster=h200x1", "task=word-problems"]
"""On a GPU."""

Seconds = Mapping[str, float]


@dataclass(frozen=True)
class Round:
    """What one process and those it started did in a step, on average: seconds by phase, and by kind of process.

    Attributes:
        phases: wall time; `step` is all of it.
        processor: user and system time.
        num_tokens: of the responses.
    """

    phases: Seconds
    processor: Seconds
    num_tokens: float


class Processes:
    """Processor time of a process and all that it started, by kind; what has ended is kept as it was last seen."""

    KINDS = {
        "sglang::scheduler": "scheduler",
        "slime_sglang.engine.launcher": "server",
        "guarded_workers.worker": "reward workers",
        "ray::": "trainer and actors",
        "/ray/": "Ray",
    }

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._root = psutil.Process(process.pid)
        self._seen: dict[tuple[int, float], tuple[str, float]] = {}

    def look(self) -> Counter[str]:
        """Seconds so far."""
        for process in [self._root, *self._root.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess), process.oneshot():
                times = process.cpu_times()
                self._seen[process.pid, process.create_time()] = self._kind(process), times.user + times.system
        total = Counter[str]()
        for kind, seconds in self._seen.values():
            total[kind] += seconds
        return total

    def _kind(self, process: psutil.Process) -> str:
        command = " ".join(process.cmdline())
        kinds = (kind for mark, kind in self.KINDS.items() if mark in command)
        return "driver" if process == self._root else next(kinds, "others")


def watched(command: Sequence[str], rows: Path, environment: Mapping[str, str]) -> Round:
    """Run `command`, which adds a line to `rows` after each step."""
    marks: list[Counter[str]] = []
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, env={**os.environ, **environment}) as process:
        processes = Processes(process)
        while process.poll() is None:
            if (found := rows.read_bytes().count(b"\n") if rows.exists() else 0) > len(marks):
                marks += [processes.look()] * (found - len(marks))
            time.sleep(POLL_S)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with code {process.returncode}")
    counted = [row for row in read_rows(rows) if row["step"] > WARM_UP]
    spent = marks[-1] - marks[WARM_UP - 1]
    names = [name for name in counted[-1] if name.startswith("seconds/")]
    phases = {name.removeprefix("seconds/"): statistics.fmean(row[name] for row in counted) for name in names}
    tokens = statistics.fmean(row["rollout/num_tokens"] for row in counted)
    return Round(phases, {kind: seconds / len(counted) for kind, seconds in spent.most_common()}, tokens)


def slime_round(model: Path, steps: int, arguments: Sequence[str], folder: Path) -> Round:
    own = [
        f"model.path={model}",
        "model.init=checkpoint",
        "sft.num_steps=0",
        f"run.num_steps={steps}",
        "run.name=slime",
    ]
    command = [sys.executable, "-m", "slime", *LAPTOP, *OWN, *own, f"run.dir={folder}", *arguments]
    return watched(command, folder / "slime" / "metrics.jsonl", {"OMP_NUM_THREADS": "1"})


def trl_round(model: Path, steps: int, folder: Path, threads: int = 1) -> Round:
    rows = folder / "trl.jsonl"
    command = [sys.executable, __file__, "--trl", str(rows), "--model", str(model), "--steps", str(steps)]
    return watched(command, rows, {"OMP_NUM_THREADS": str(threads)})


def supervised(folder: Path) -> Path:
    """The exported model of slime's supervised stage, which both start from."""
    arguments = [*MODEL, "algo=sft", "eval.path=null", f"run.dir={folder}", "run.name=sft"]
    subprocess.run([sys.executable, "-m", "slime", *arguments], check=True, stdout=sys.stderr)
    return folder / "sft" / "export"


def mean(rounds: Sequence[Round], field: str) -> dict[str, float]:
    names = dict.fromkeys(name for each in rounds for name in getattr(each, field))
    return {name: statistics.fmean(getattr(each, field).get(name, 0.0) for each in rounds) for name in names}


def table(ours: Sequence[Round], theirs: Sequence[Round], num_samples: int) -> str:
    lines = []
    for name, rounds in (("slime", ours), ("TRL", theirs)):
        tokens = statistics.fmean(each.num_tokens for each in rounds) / num_samples
        lines += [f"{name}: {num_samples} samples of {tokens:.1f} tokens a step, mean of {len(rounds)} rounds", ""]
        lines += ["| wall time of | s a step |", "|---|---|"]
        lines += [f"| {phase} | {value:.3f} |" for phase, value in mean(rounds, "phases").items()]
        processor = mean(rounds, "processor")
        lines += ["", "| processor time of | s a step | ms a sample |", "|---|---|---|"]
        lines += [f"| {kind} | {value:.3f} | {value / num_samples * 1e3:.2f} |" for kind, value in processor.items()]
        total = sum(processor.values())
        lines += [f"| all | {total:.3f} | {total / num_samples * 1e3:.2f} |", ""]
    pairs = [(one.phases["step"], other.phases["step"]) for one, other in zip(ours, theirs, strict=True)]
    rounds_ratios = ", ".join(f"{one / other:.2f}" for one, other in pairs)
    ratio = statistics.median(one / other for one, other in pairs)
    work = sum(mean(ours, "processor").values()) / sum(mean(theirs, "processor").values())
    verdict = "kept" if ratio <= PROMISED else "MISSED"
    lines += [f"a step of slime over one of TRL: {ratio:.2f} in wall time (rounds: {rounds_ratios}), {work:.2f} in"]
    return "\n".join(lines) + f" processor time; promised at most {PROMISED:.1f} in wall time: {verdict}"


def options_of() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="exported folder; by default one is trained on demonstrations")
    parser.add_argument("--steps", type=int, default=20, help="of a round, warm-up included")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--trl-threads", type=int, default=os.cpu_count())
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="cuda: one GPU for each in turn")
    parser.add_argument("--out", type=Path, help="with cuda: new folder for rows and output")
    parser.add_argument("--limit", type=float, default=200.0, metavar="SECONDS", help="with cuda: of each, with start")
    parser.add_argument("--trl-batch", type=int, default=128, help="with cuda: samples that TRL computes at once")
    parser.add_argument("--trl-continuous", action="store_true", help="TRL generates by continuous batching")
    parser.add_argument("--trl-vllm", type=float, metavar="SHARE", help="TRL generates with vLLM; of the GPU's memory")
    parser.add_argument("--trl-attention", default="sdpa", help="of transformers, in TRL")
    parser.add_argument(
        "--trl-set", action="append", default=[], metavar="FIELD=JSON", help="of GRPOConfig; repeatable"
    )
    parser.add_argument("--trl-path", default="", help="what TRL's process finds before PYTHONPATH")
    parser.add_argument("--name", default="TRL", help="with cuda: in the table, of these settings of TRL")
    parser.add_argument("--alone", action="store_true", help="with cuda: without slime")
    parser.add_argument("--trl", type=Path, metavar="ROWS", help=argparse.SUPPRESS)
    return parser


def main() -> None:
    parser = options_of()
    options, arguments = parser.parse_known_args()
    if options.device == "cuda":
        if not (options.model and options.out):
            parser.error("--device cuda needs --model and --out")
        on_gpu(options, beside.words(RUN, arguments))
    else:
        on_cpu(options, arguments)


def on_gpu(options: argparse.Namespace, words: Sequence[str]) -> None:
    model, out = options.model.absolute(), options.out.absolute()
    cfg = compose([*words, f"model.path={model}"])
    if options.trl:
        settings = dict(trl_settings(options))
        train_with_trl(cfg, model, options.steps, options.trl, options.trl_batch, **settings)
        return
    out.mkdir(parents=True, exist_ok=options.alone)
    file = beside.file_name(options.name)
    rows = out / f"{file}.jsonl"
    mine = [word for word in sys.argv[1:] if word not in words]
    command = [sys.executable, __file__, *mine, "--trl", str(rows), *words]
    path = os.pathsep.join(filter(None, [options.trl_path, os.environ.get("PYTHONPATH", "")]))
    trl = beside.watched(options.name, command, rows, out / f"{file}.log", options.limit, PYTHONPATH=path)
    slime = [] if options.alone else [beside.slime(model, out, options.steps, options.limit, words)]
    programs = (*slime, (trl, beside.read_slime(trl.rows)))
    beside.tell(out, beside.size(cfg, model), *programs, alone=options.alone)


def trl_settings(options: argparse.Namespace) -> Iterator[tuple[str, Any]]:
    """What the options give to `train_with_trl`."""
    yield "attention", options.trl_attention
    yield "use_transformers_continuous_batching", options.trl_continuous
    if options.trl_vllm:
        yield "use_vllm", True
        yield "vllm_gpu_memory_utilization", options.trl_vllm
    for field, _, value in (each.partition("=") for each in options.trl_set):
        yield field, json.loads(value)


def on_cpu(options: argparse.Namespace, arguments: Sequence[str]) -> None:
    cfg = compose([*LAPTOP, *OWN, *arguments])
    if options.trl:
        train_with_trl(cfg, options.model, options.steps, options.trl)
        return
    with tempfile.TemporaryDirectory() as scratch:
        model = (options.model or supervised(Path(scratch))).absolute()
        ours, theirs = [], []
        for number in range(options.rounds):
            folder = Path(scratch) / str(number)
            folder.mkdir()
            theirs.append(trl_round(model, options.steps, folder, options.trl_threads))
            ours.append(slime_round(model, options.steps, arguments, folder))
    num_samples = cfg.rollout.prompts_per_step * cfg.rollout.samples_per_prompt
    print(f"{conditions()}\n\n{table(ours, theirs, num_samples)}")


if __name__ == "__main__":
    main()
