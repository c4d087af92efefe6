"""What users of slime and of TRL write for the tasks of docs/tutorial.md and examples/, and what each takes.

    python benchmarks/tasks_beside_trl/measure.py             # lines and words
    python benchmarks/tasks_beside_trl/measure.py --trl VENV --demo runs/glm4-tiny-local/export --calls CALLS/export

`VENV` has TRL and peft. `demo` is what `make demo` leaves; `calls` has seen demonstrations of calls alone: the command
of examples/tool with `algo=sft run.name=calls`. Both begin with the same weights, take as many samples a step, and save
the model; slime's evaluation is left out. Each runs once, in turn.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE.parent), str(ROOT)]

from tests.typed import commands  # noqa: E402

STEPS, SFT_STEPS = 3, 100
TEMPLATE = """[gMASK]<sop>{% for m in messages %}<|{{ {'tool': 'observation'}.get(m.role, m.role) }}|>
{% if m.tool_calls %}{{ m.tool_calls[0].function.name }}
{{ m.tool_calls[0].function.arguments | tojson }}{% else %}{{ m.content }}{% endif %}{% if m.role == 'assistant' %}\
<|endoftext|>{% endif %}{% endfor %}{% if add_generation_prompt %}<|assistant|>
{% endif %}"""
"""GLM-4's form of a call, which TRL does not know, nor how to read an answer: Qwen3 and Llama need neither."""
CALL = {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}
BEGIN, END = {"open_pattern": r"(?P<name>[a-z]+)\n(?=\{)"}, {"close_pattern": r"<\|endoftext\|>"}
CALLS = BEGIN | END | {"repeats": True, "content": "json", "transform": CALL}
FIELDS = {"tool_calls": CALLS, "content": END | {"content": "text"}}
ANSWER = {"defaults": {"role": "assistant"}, "start_anchor": "<|assistant|>\n", "fields": FIELDS}
DATA, CALCULATOR, REWARD = "examples/reward/make_data.py", "examples/tool/my_tools.py", "examples/reward/my_reward.py"
THREE, MINE = "examples/agent/make_data.py", "benchmarks/tasks_beside_trl/"
SUPERVISED = "slime +model=glm4-tiny +cluster=local algo=sft sft.path=demonstrations.jsonl"
RL, TURNS = "--num_generations 8 --max_completion_length", "--max_tool_calling_iterations"


class Task(NamedTuple):
    """Files of slime's user and TRL's; TRL's program, rows, words, and those for slime's sizes; the start."""

    slime: list[str]
    trl: list[str]
    program: str
    rows: str
    words: str
    size: str
    start: str = "demo"
    batch: int = 256

    @property
    def command(self) -> str:
        return f"{self.program} --model_name_or_path {self.start} --dataset_name {self.rows} {self.words}".strip()


def task(slime: list[str], trl: str, *rest: object) -> Task:
    """Of a script of this folder, behind its rewards; a * stands for slime's first file, which both need."""
    named = {"*": slime[:1], "r": [MINE + "reward.py"]}
    files = [file for mark in trl.split() for file in named.get(mark, [f"{MINE}{mark}.py"])]
    return Task(slime, files, *rest)  # type: ignore[arg-type]


TASKS = {
    "reward": task([DATA, REWARD], "* r", "trl grpo", "till", "--reward_funcs beside.reward.score", f"{RL} 16"),
    "tool": task([CALCULATOR], "* r tool", "python -m beside.tool", "products", "", f"{RL} 64 {TURNS} 2", "calls"),
    "agent": task(
        [THREE, "examples/agent/agent.py", REWARD], "* r agent", "python -m beside.agent", "three", "", f"{RL} 32",
        "demo", 128,
    ),
    "environment": task(
        ["examples/environment/my_env.py"], "environment", "python -m beside.environment", "sums", "",
        f"{RL} 64 {TURNS} 4",
    ),
    "lora": task(
        [], "r lora", "python -m beside.lora", "gsm8k", "--use_peft --lora_r 32 --learning_rate 1e-5",
        f"{RL} 16 --lora_target_modules all-linear",
    ),
    "distillation": task(
        [], "", "trl distillation", "sums", "--teacher_model_name_or_path demo", "--max_completion_length 16", "calls"
    ),
    "supervised": task([], "", "trl sft", "demonstrations", "", "", "demo", 32),
}  # fmt: skip


def typed(name: str) -> str:
    """slime's command, as its page has it; the demo's first stage has no command of its own."""
    return SUPERVISED if name == "supervised" else commands(ROOT / f"examples/{name}/README.md")[-1]


def lines(files: list[str]) -> int:
    """Of these files, without blanks, comments and what stands above the imports."""
    texts = [(ROOT / file).read_text() for file in files]
    bodies = [text.split('"""', 2)[2] if text.startswith('"""') else text for text in texts]
    return sum(bool(line.partition("#")[0].strip()) for body in bodies for line in body.split("\n"))


def counts() -> str:
    rows = [
        "| task | slime: files | lines | words | TRL: files | lines | words | with slime's sizes |",
        "|---" * 8 + "|",
    ]
    for name, one in TASKS.items():
        sides = [(one.slime, typed(name)), (one.trl, one.command)]
        cells = [f"{len(files)} | {lines(files)} | {len(command.split())}" for files, command in sides]
        rows.append(f"| {name} | {' | '.join(cells)} | {len(trl_words(name, Path()))} |")
    return "\n".join(rows)


def prepare(folder: Path, models: dict[str, Path]) -> None:
    """The rows in the forms that TRL reads, and the two models with GLM-4's calls."""
    for link, target in {"examples": ROOT / "examples", "beside": HERE}.items():
        (folder / link).symlink_to(target)
    for made in (DATA, THREE):
        subprocess.run([sys.executable, ROOT / made], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    sums = ROOT / "plugins/rewards/slime_rewards/math/data"
    products = ROOT / "plugins/agents/slime_agents/tools/data/multiplication-train.jsonl"
    (folder / "demonstrations.jsonl").write_text((sums / "arithmetic-sft.jsonl").read_text())
    files = {name: folder / f"{name}.jsonl" for name in ("till", "three", "demonstrations")}
    for name, file in {
        **files,
        "gsm8k": files["till"],
        "sums": sums / "arithmetic-train.jsonl",
        "products": products,
    }.items():
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        (folder / name).mkdir()
        (folder / name / "train.jsonl").write_text("".join(json.dumps(for_trl(name, row)) + "\n" for row in rows))
    for name, model in models.items():
        subprocess.run(["cp", "-rL", model, folder / name], check=True)
        (folder / name / "chat_template.jinja").write_text(TEMPLATE)
        settings = folder / name / "tokenizer_config.json"
        settings.write_text(json.dumps(json.loads(settings.read_text()) | {"response_template": ANSWER}))


def for_trl(name: str, row: dict) -> dict:
    if name == "demonstrations":
        return {"prompt": row["messages"][:1], "completion": row["messages"][1:]}
    asked, label = row["prompt"], row["label"]
    if name == "gsm8k":
        return {"question": asked, "answer": f"#### {label}"}
    return {"prompt": [{"role": "user", "content": asked}] if isinstance(asked, str) else asked, "label": label}


def slime_words(name: str, model: Path) -> list[str]:
    """The page's command, from the same weights for as many steps, without evaluation; LoRA with rows that fit here."""
    page = shlex.split(typed(name if name != "lora" else "reward"))[1:]
    words = [word for word in page if not word.startswith("eval.")]
    words += ["train.lora.rank=32", "train.optimizer.lr=1e-5"] * (name == "lora")
    words += ["algo.teacher.path=demo"] * (name == "distillation")
    steps = [f"sft.num_steps={SFT_STEPS}"] if name == "supervised" else ["sft.num_steps=0", f"run.num_steps={STEPS}"]
    own = ["eval.path=null", "model.init=checkpoint", f"model.path={model}", f"run.name={name}", "run.progress=false"]
    return [sys.executable, "-m", "slime", *words, *own, *steps]


def trl_words(name: str, venv: Path) -> list[str]:
    one, steps = TASKS[name], SFT_STEPS if name == "supervised" else STEPS
    rate = "" if "learning_rate" in one.words else "--learning_rate 2e-4"
    sizes = f"{one.size} --per_device_train_batch_size {one.batch} --max_steps {steps} {rate}"
    return f"{venv}/bin/{one.command} {sizes} --bf16 false --report_to none --output_dir out-{name}".split()


def measured(command: list[str], folder: Path, log: Path, **environment: str) -> str:
    """Wall and processor seconds of a command and all that it starts; or how it ended, and its last line."""
    from against_trl import Processes

    began, env = time.time(), {**os.environ, **environment}
    with (
        log.open("wb") as to,
        subprocess.Popen(command, cwd=folder, stdout=to, stderr=subprocess.STDOUT, env=env) as process,
    ):
        processes = Processes(process)
        while process.poll() is None:
            spent = sum(processes.look().values())
            time.sleep(0.1)
    last = (log.read_text(errors="replace").splitlines() or [""])[-1]
    return (
        f"ended with {process.returncode}: {last}" if process.returncode else f"{time.time() - began:.0f} | {spent:.0f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("--trl", "--demo", "--calls"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--tasks", nargs="*", default=list(TASKS), choices=TASKS)
    options = parser.parse_args()
    print(counts())
    if options.trl is None:
        return
    out = Path(tempfile.mkdtemp(prefix="beside-trl-"))
    models = {"demo": options.demo.absolute(), "calls": options.calls.absolute()}
    prepare(out, models)
    print(f"\n{out}\n\n| task | program | wall s | processor s |\n|---|---|---|---|")
    for name in options.tasks:
        for who, command, environment in (
            ("slime", slime_words(name, models[TASKS[name].start]), {"OMP_NUM_THREADS": "1"}),
            ("TRL", trl_words(name, options.trl.absolute()), {"HF_HUB_OFFLINE": "1"}),
        ):
            print(
                f"| {name} | {who} | {measured(command, out, out / f'{name}-{who}.log', **environment)} |", flush=True
            )


if __name__ == "__main__":
    main()
