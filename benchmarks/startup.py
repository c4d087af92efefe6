"""How long a user waits: seconds of `--help`, `plugins` and `plan`, and the time to the first optimizer step.

    python benchmarks/startup.py                 # the verbs, each in five fresh processes
    python benchmarks/startup.py --first-step    # also starts the demo with one supervised and one RL step

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
from pathlib import Path

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


def first_steps() -> dict[str, float]:
    """Seconds from the command to the end of the first supervised and the first RL optimizer step."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.time()
        slime([*RUN, *SHORT, f"run.dir={folder}"])
        (metrics,) = Path(folder).glob("*/metrics.jsonl")
        rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    return {f"first {row['stage']} step": row["time"] - start for row in rows if row["step"] == 1}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first-step", action="store_true", help="also run the demo to its first optimizer steps")
    parser.add_argument("--repeat", type=int, default=5, help="fresh processes a verb")
    options = parser.parse_args()
    print("| command | wall s, least | median | CPU s, least | limit s |\n|---|---|---|---|---|")
    for name, arguments in VERBS.items():
        _, *times = [slime(arguments) for _ in range(1 + options.repeat)]
        walls, cpus = zip(*times, strict=True)
        median = statistics.median(walls)
        print(f"| slime {name} | {min(walls):.2f} | {median:.2f} | {min(cpus):.2f} | {LIMITS_S.get(name, '')} |")
    for name, wall in first_steps().items() if options.first_step else ():
        print(f"| {name} | {wall:.1f} | | | |")


if __name__ == "__main__":
    main()
