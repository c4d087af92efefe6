"""What slime answers to nearly three hundred things that people type wrong, or that look wrong and are right.

    python benchmarks/mistakes.py                 # all of benchmarks/mistakes.toml: seven minutes of a processor
    python benchmarks/mistakes.py data reward     # some kinds
    python benchmarks/mistakes.py --show          # with every answer

Each is a command of its own in a folder of data, models and reward functions, with a time limit. Marks:

    works        ended with 0, as it should
    way out      refused in at most three lines, which name what to do instead
    told         ended with 0 as it should not, and a line says what is wrong
    no way out   refused, and no line says what to do
    long         refused in more than three lines
    silent       ended with 0 as it should not, without a word
    refused      should have worked
    traceback    Python's own, or later than the limit
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from machine import conditions

from slime.config.paths import resolve

GOOD, LIMIT_S, MAX_LINES = ("works", "way out", "told"), 120, 3
SHORT = {
    "M": "+model=glm4-tiny +cluster=local",
    "D": "+model=glm4-tiny +cluster=local task=none reward=math rollout.max_prompt_tokens=64 run.num_steps=2 "
    "sft.num_steps=0 sft.lr_warmup_steps=0 rollout.sampling.max_response_tokens=64",
}
REWARDS = """
CONSTANT = 3


def good(response, label): return float(response.strip() == label)
def none(response, label): return None
def dictionary(response, label): return {"value": 1.0}
def text(response, label): return "1.0"
def nan(response, label): return float("nan")
def raises(response, label): return 1 / 0
def exits(response, label): raise SystemExit(3)
def array(response, label):
    import numpy
    return numpy.ones(3)
def needs_more(response, label, extra): return 1.0
def verl(data_source, solution_str, ground_truth, extra_info=None): return float(ground_truth == solution_str.strip())
def trl(completions, label, **kwargs):
    return [float(each.strip() == right) for each, right in zip(completions, label)]
def pays_all(completions, **kwargs): return [1.0 for _ in completions]
async def asynchronous(response, label): return float(label == response.strip())
def yes(response, label): return label == response.strip()
def prints(response, label):
    print(response)
    return float(label == response.strip())
def sometimes(response, label): return None if len(response) % 2 else 1.0
def keep(group): return True
async def agent(task, endpoint): return None
"""

CHOSEN = "model: glm4-tiny\ncluster: local\n"
RUN_FILES = {
    "my": f"{CHOSEN}run:\n  num_steps: 4\n",
    "wrong": f"{CHOSEN}run:\n  num_stepz: 4\n",
    "broken": "model: [glm4-tiny\n",
    "group": f"algo: grop\n{CHOSEN}",
    "sections": f"{CHOSEN}train.lr: 1.0e-3\n",
    "type": f"{CHOSEN}run:\n  num_steps: many\n",
    "twice": f"{CHOSEN}run.seed: 1\nrun:\n  seed: 2\n",
    "tab": f"{CHOSEN}run:\n\tnum_steps: 4\n",
    "list": "- model: glm4-tiny\n- cluster: local\n",
    "hydra": f"defaults: [{{reward: math}}]\n{CHOSEN}",
    "trl": f"{CHOSEN}learning_rate: 1.0e-6\nper_device_train_batch_size: 8\n",
    "model": "model: glm4-tiny\n",
}


def write_files(at: Path) -> None:
    """What the commands name."""
    rows = [{"prompt": f"{a}+{b}=", "label": str(a + b)} for a in range(2, 6) for b in range(11, 15)]
    lines = {
        "rows": rows,
        "nolabel": [{"prompt": row["prompt"]} for row in rows],
        "noprompt": [{"label": row["label"]} for row in rows],
        "qa": [{"question": row["prompt"], "answer": row["label"]} for row in rows],
        "chat": [{"messages": [{"role": "user", "content": row["prompt"]}], "label": row["label"]} for row in rows],
        "parts": [
            {
                "messages": [{"role": "user", "content": [{"type": "text", "text": row["prompt"]}]}],
                "label": row["label"],
            }
            for row in rows
        ],
        "image": [
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}], "label": "1"}
            for _ in rows
        ],
        "ends": [
            {"messages": [{"role": "user", "content": row["prompt"]}, {"role": "assistant", "content": row["label"]}]}
            for row in rows
        ],
        "dup": rows * 2,
        "empty": [],
    }
    for name, values in lines.items():
        (at / f"{name}.jsonl").write_text("".join(json.dumps(value) + "\n" for value in values))
    whole = (at / "rows.jsonl").read_bytes()
    (at / "rows.jsonl.gz").write_bytes(gzip.compress(whole))
    (at / "list.json").write_text(json.dumps(rows))
    (at / "table.csv").write_text("prompt,label\n" + "".join(f"{row['prompt']},{row['label']}\n" for row in rows))
    (at / "broken.jsonl").write_text('{"prompt": "1+1=", "label": "2"}\n{"prompt": \n')
    (at / "nan.jsonl").write_text('{"prompt": "1+1=", "label": NaN}\n' * 8)
    (at / "latin.jsonl").write_bytes('{"prompt": "é", "label": "2"}\n'.encode("latin-1") * 8)
    (at / "notes.txt").write_text("some notes\n")
    (at / "two").mkdir()
    for split in ("train", "test"):
        (at / "two" / f"{split}.jsonl").write_bytes(whole)
    (at / "my.py").write_text(REWARDS)
    (at / "imports.py").write_text("import nosuchpackage\n" + REWARDS)
    (at / "relative.py").write_text("from . import other\n" + REWARDS)
    (at / "syntax.py").write_text("def good(response, label) return 1\n")
    for name, text in RUN_FILES.items():
        (at / f"{name}.yaml").write_text(text)
    write_models(at)


def write_models(at: Path) -> None:
    """Folders of models, of which each lacks something."""
    config: dict[str, Any] = json.loads(resolve("pkg://slime_plugin_glm4/assets/glm4-tiny/config.json").read_text())
    folders: dict[str, dict[str, Any]] = {
        "void": {},
        "strange": {"config.json": config | {"model_type": "mamba", "architectures": ["MambaForCausalLM"]}},
        "pointer": {
            "config.json": config,
            "model.safetensors": "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
        },
        "binonly": {"config.json": config, "pytorch_model.bin": "x"},
        "halfshards": {
            "config.json": config,
            "model.safetensors.index.json": {
                "weight_map": {"a": "model-00001.safetensors", "b": "model-00002.safetensors"}
            },
            "model-00001.safetensors": "x",
        },
        "adapter": {"adapter_config.json": {"peft_type": "LORA", "base_model_name_or_path": "x"}},
        "quantized": {"config.json": config | {"quantization_config": {"quant_method": "awq", "bits": 4}}},
        "notokenizer": {"config.json": config},
    }
    for folder, files in folders.items():
        (at / folder).mkdir()
        for name, content in files.items():
            (at / folder / name).write_text(content if isinstance(content, str) else json.dumps(content))


def answer(case: dict[str, Any], at: Path) -> tuple[str, str]:
    """The mark of a command, and what it printed on the error stream, or its last lines."""
    words = " ".join(SHORT.get(word, word) for word in case["do"].split(" "))
    environment = {**os.environ, "COLUMNS": "120", **case.get("environment", {})}
    try:
        done = subprocess.run(
            f"{sys.executable} -m slime {words}",
            shell=True,
            cwd=at,
            env=environment,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired as late:
        return "traceback", f"not ended after {LIMIT_S} s: {late.stdout!r}"
    said = [line for line in done.stderr.splitlines() if line.strip()]
    printed = done.stdout + done.stderr
    shown = "\n".join(said or done.stdout.splitlines()[-3:])
    if "Traceback" in printed:
        return "traceback", shown
    told = [line for line in said if not line.startswith("slime: note: ")]
    whole = case.get("ok") or case["do"].startswith("check-reward")
    names_it = re.search(case.get("says", ""), printed if whole else "\n".join(told))
    if case.get("ok"):
        return ("works" if done.returncode == 0 and names_it else "refused"), shown
    if done.returncode == 0:
        return ("told" if names_it and said else "silent"), shown
    if not names_it:
        return "no way out", shown
    return ("long" if len(said) > MAX_LINES and not case["do"].startswith("check-reward") else "way out"), shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", help="kinds of benchmarks/mistakes.toml")
    parser.add_argument("--show", action="store_true", help="every answer")
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    cases: dict[str, list[dict[str, Any]]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
    print(conditions(), flush=True)
    rows = []
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(arguments.processes) as pool:
        write_files(Path(folder))
        for kind in arguments.kinds or cases:
            answers = list(pool.map(lambda case: answer(case, Path(folder)), cases[kind]))
            for case, (mark, shown) in zip(cases[kind], answers, strict=True):
                if arguments.show or mark not in GOOD:
                    print(f"\n[{mark}] {case['do']} {case.get('environment', '')}\n{shown}", flush=True)
            rows.append((kind, Counter(mark for mark, _ in answers)))
    marks = [*GOOD, "no way out", "long", "silent", "refused", "traceback"]
    print(f"\n| kind | tried | {' | '.join(marks)} |\n|{'---|' * (len(marks) + 2)}")
    for kind, count in [*rows, ("all", sum((count for _, count in rows), Counter()))]:
        print(f"| {kind} | {count.total()} | {' | '.join(str(count[mark]) for mark in marks)} |")


if __name__ == "__main__":
    main()
