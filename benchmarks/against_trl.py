"""A step of slime's laptop run beside a step of TRL's GRPOTrainer, on the same model, prompts and batch.

    pip install --no-deps --requirement requirements/trl.txt  # beside slime: no package is replaced
    python benchmarks/against_trl.py                          # trains the model on demonstrations first, a minute
    python benchmarks/against_trl.py --model RUN/export --steps 30 --rounds 3
    python benchmarks/against_trl.py --device cuda --model models/SmolLM2 --out FOLDER +cluster=h100x1

Both start from the same exported folder, take 32 prompts x 8 samples of at most 16 tokens a step, learn by GRPO in
float32 and neither evaluate nor save. They run one after the other, in turn, a fresh process a round; the first steps
are left out as warm-up. TRL generates with transformers in its own process, its way without a GPU; it computes with a
thread for each core unless `--trl-threads` says otherwise. slime has two engines and two trainer ranks with a thread
each, which take turns.

With `--device cuda` both have one GPU, one after the other, for `--steps` steps or `--limit` seconds each, and the task
of the recipe that is named, word problems by default: see `beside.py` for what is reported. TRL then computes in bf16
beside float32 weights, as slime does, attends with SDPA and generates with transformers: one `generate` for all
samples, or continuous batching with `--trl-continuous`. `FOLDER` keeps rows and output. Not yet run on a GPU.

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
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import beside
import psutil
from machine import conditions

from slime.compose.compose import compose
from slime.config.choices import Device
from slime.config.schema import SlimeConfig
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


def train_with_trl(
    cfg: SlimeConfig, model: Path, steps: int, rows: Path, batch: int | None = None, *, continuous: bool = False
) -> None:
    """What runs in TRL's process: as many samples a step, one optimizer step, the same loss, reward and prompts.

    `batch` samples are computed at once, by default all of a step.
    """
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    from slime.config.paths import resolve
    from slime.data.prompts import PromptSet
    from slime.data.tokenize import load_tokenizer
    from slime.plugins import load
    from slime.types import Sample

    tokenizer = load_tokenizer(model)
    prompts = PromptSet(cfg.data, resolve(str(cfg.data.path)), tokenizer, cfg.rollout.max_prompt_tokens)
    found = [prompts.prompt(number, 0) for number in range(len(prompts))]
    by_id = {prompt.id: prompt for prompt in found}
    data = Dataset.from_list([{"prompt": list(prompt.messages), "id": prompt.id} for prompt in found])
    reward = load().rewards.create(cfg.reward.name, **cfg.reward.options)
    num_samples = cfg.rollout.prompts_per_step * cfg.rollout.samples_per_prompt
    seconds = Counter[str]()

    @contextmanager
    def timed(phase: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        seconds[phase] += time.perf_counter() - start

    def score(completions: Sequence[Any], completion_ids: Sequence[Any], **columns: Any) -> list[float]:
        with timed("reward"):
            samples = [
                Sample(by_id[id_], 0, response=completion[0]["content"])
                for id_, completion in zip(columns["id"], completions, strict=True)
            ]
            seconds["tokens"] += sum(map(len, completion_ids))
            rewards = [float(reward.score(sample).value or 0.0) for sample in samples]
            seconds["rewards"] += sum(rewards)
            return rewards

    class Timed(GRPOTrainer):  # type: ignore[misc]
        def _generate(self, *arguments: Any, **named: Any) -> Any:
            with timed("generate"):
                return super()._generate(*arguments, **named)

    class Rows(TrainerCallback):  # type: ignore[misc]
        """A row a step, with what no phase covers as `train`."""

        start = 0.0

        def on_step_begin(self, *arguments: Any, **named: Any) -> None:
            self.start = self.start or time.perf_counter()

        def on_step_end(self, args: Any, state: Any, control: Any, **named: Any) -> None:
            now = time.perf_counter()
            phases = {"generate": seconds["generate"], "reward": seconds["reward"]}
            phases = phases | {"train": now - self.start - sum(phases.values()), "step": now - self.start}
            row = {
                "stage": "rl",
                "step": state.global_step,
                "time": time.time(),
                "rollout/num_tokens": seconds["tokens"],
                "rollout/reward_mean": seconds["rewards"] / num_samples,
            }
            row |= {f"seconds/{phase}": value for phase, value in phases.items()}
            with rows.open("a") as file:
                file.write(json.dumps(row) + "\n")
            seconds.clear()
            self.start = now

    rollout, optimizer = cfg.rollout, cfg.train.optimizer
    cuda, batch = cfg.cluster.device is Device.cuda, batch or num_samples
    settings = GRPOConfig(
        output_dir=str(rows.parent / "trl"),
        use_cpu=not cuda,
        bf16=cuda,
        tf32=True if cuda else None,
        use_transformers_continuous_batching=continuous,
        max_steps=steps,
        per_device_train_batch_size=batch,
        gradient_accumulation_steps=num_samples // batch,
        num_generations=rollout.samples_per_prompt,
        max_completion_length=rollout.sampling.max_response_tokens,
        temperature=rollout.sampling.temperature,
        top_p=rollout.sampling.top_p,
        top_k=0,
        beta=0.0,
        learning_rate=optimizer["lr"],
        adam_beta2=optimizer["adam_beta2"],
        max_grad_norm=optimizer["clip_grad"],
        lr_scheduler_type="constant",
        gradient_checkpointing=False,
        save_strategy="no",
        report_to=[],
        logging_steps=1,
        disable_tqdm=True,
        seed=cfg.run.seed,
    )
    trained = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    trainer = Timed(trained, [score], settings, train_dataset=data, processing_class=tokenizer, callbacks=[Rows()])
    trainer.train()


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


def main() -> None:
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
    parser.add_argument("--trl", type=Path, metavar="ROWS", help=argparse.SUPPRESS)
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
        train_with_trl(cfg, model, options.steps, options.trl, options.trl_batch, continuous=options.trl_continuous)
        return
    out.mkdir(parents=True)
    rows = out / "trl.jsonl"
    own = ["--device", "cuda", "--trl", rows, "--model", model, "--out", out, "--steps", options.steps]
    own += ["--trl-batch", options.trl_batch, *["--trl-continuous"] * options.trl_continuous]
    command = [sys.executable, __file__, *map(str, own), *words]
    trl = beside.watched("TRL", command, rows, out / "trl.log", options.limit)
    slime = beside.slime(model, out, options.steps, options.limit, words)
    programs = ((seen, beside.read_slime(seen.rows)) for seen in (slime, trl))
    print(beside.report(beside.size(cfg, model), *programs))


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
