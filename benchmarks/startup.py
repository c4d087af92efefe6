"""How long a user waits: seconds of `--help`, `plugins` and `plan`, and the time to the first optimizer step.

    python benchmarks/startup.py                 # the verbs, each in five fresh processes
    python benchmarks/startup.py --first-step    # also starts the demo with one supervised and one RL step, by phases

The limits are those the project promises: `--help` 0.15 s, `plan` 1 s, also of 256 GPUs, `plan --fit` 5 s; wall time on
an idle machine. What else the machine does only adds, so the least of the processes stands beside the median, and its
processor time. Python keeps compiled modules, as it does for whoever installs slime: a first process of each verb makes
them and is not counted.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import psutil

RUN = ["+model=glm4-tiny", "+cluster=local"]
VERBS = {"--help": ["--help"], "plugins": ["plugins"], "plan": ["plan", *RUN]}
FIVE = ("glm5.2@h100x256", "deepseek-r1@h100x128", "glm4.5@h100x64", "glm4.7-flash@h100x8", "glm4-9b@h100x8")
for _model, _cluster in (recipe.split("@") for recipe in FIVE):
    VERBS[f"plan {_model} {_cluster}"] = ["plan", f"+model={_model}", f"+cluster={_cluster}"]
    VERBS[f"plan {_model} {_cluster} --fit"] = [*VERBS[f"plan {_model} {_cluster}"], "--fit"]
LIMITS_S = {"--help": 0.15} | {name: 5.0 if "--fit" in name else 1.0 for name in VERBS if name.startswith("plan")}
SHORT = [
    "sft.num_steps=1",
    "sft.lr_warmup_steps=0",
    "run.num_steps=1",
    "rollout.prompts_per_step=4",
    "eval.path=null",
    "train.checkpoint.export_hf=false",
    "run.progress=false",
]


def slime(arguments: list[str]) -> tuple[float, float]:
    """(wall seconds, CPU seconds) of one fresh process."""
    cpu_before, start = children_cpu_s(), time.perf_counter()
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}  # plans tell what is not fetched yet
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    subprocess.run([sys.executable, "-m", "slime", *arguments], check=True, env=variables, **quiet)
    return time.perf_counter() - start, children_cpu_s() - cpu_before


def children_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


PHASES = {
    "starting Ray": "imports, config",
    "reading the data": "Ray",
    "; run directory ": "tokenizer, data",
    "trainer rank": "run directory, reward workers",
    "loading weights": "trainers",
    "ready: ": "first weights",
}
"""A line of the terminal, by a part of it -> what ends with it."""
KINDS = {
    "slime_sglang.engine.launcher": "engine",
    "sglang::": "engine",
    "ray::TrainerActor": "trainer",
    "ray::EngineActor": "engine's keeper",
    "-m slime +model": "driver",
    "slime_cluster.ray.reaper": "reaper",
    "ray": "Ray",
}
"""A part of a command line -> whose process it is; the first that fits."""


def first_steps() -> tuple[dict[str, float], dict[str, float]]:
    """Of the demo with one supervised and one RL step: seconds from the command to the end of each phase of the start
    and of both first steps; and processor time until it was ready, by process."""
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    variables |= {"PYTHONUNBUFFERED": "1", "COLUMNS": "1000"}
    ends: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        command, start = [sys.executable, "-m", "slime", *RUN, *SHORT, f"run.dir={folder}"], time.time()
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=variables, text=True) as run:
            assert run.stdout
            for line in run.stdout:
                if phase := next((phase for part, phase in PHASES.items() if part in line), None):
                    ends[phase] = time.time() - start
                if "ready: " in line:
                    cpu, server = look(psutil.Process(run.pid))
                    ends["actors"] = server - start
        assert run.returncode == 0, command
        (metrics,) = Path(folder).glob("*/metrics.jsonl")
        rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    ends |= {f"first {row['stage']} step": row["time"] - start for row in rows if row["step"] == 1}
    return dict(sorted(ends.items(), key=lambda end: end[1])), cpu


def look(driver: psutil.Process) -> tuple[dict[str, float], float]:
    """Processor time of the driver and all that it started, by kind; and when the engine's server was started."""
    spent, servers = Counter[str](), []
    for process in [driver, *driver.children(recursive=True)]:
        try:
            times, command = process.cpu_times(), " ".join(process.cmdline())
        except psutil.NoSuchProcess:  # it has ended since it was listed
            continue
        kind = next((kind for part, kind in KINDS.items() if part in command), "reward workers")
        spent[kind] += times.user + times.system
        if "slime_sglang.engine.launcher" in command:
            servers.append(process.create_time())
    return dict(spent.most_common()), min(servers)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first-step", action="store_true", help="also run the demo to its first optimizer steps")
    parser.add_argument("--repeat", type=int, default=5, help="fresh processes a verb; 0: only the first step")
    options = parser.parse_args()
    if options.repeat:
        print("| command | wall s, least | median | CPU s, least | limit s |\n|---|---|---|---|---|")
    for name, arguments in VERBS.items() if options.repeat else ():
        _, *times = [slime(arguments) for _ in range(1 + options.repeat)]
        walls, cpus = zip(*times, strict=True)
        median = statistics.median(walls)
        print(f"| slime {name} | {min(walls):.2f} | {median:.2f} | {min(cpus):.2f} | {LIMITS_S.get(name, '')} |")
    if options.first_step:
        ends, cpu = first_steps()
        print("\n| phase of a start | wall s, until its end | by itself |\n|---|---|---|")
        for before, (name, end) in zip([0.0, *ends.values()], ends.items(), strict=False):
            print(f"| {name} | {end:.1f} | {end - before:.1f} |")
        print("\n| until ready | CPU s |\n|---|---|")
        for name, seconds in cpu.items():
            print(f"| {name} | {seconds:.1f} |")
        print(f"| all | {sum(cpu.values()):.1f} |")


if __name__ == "__main__":
    main()
