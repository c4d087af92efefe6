"""What runs in TRL's process beside slime: `against_trl.py` calls it."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from slime.config.choices import Device
from slime.config.schema import SlimeConfig


def train_with_trl(
    cfg: SlimeConfig,
    model: Path,
    steps: int,
    rows: Path,
    batch: int | None = None,
    *,
    attention: str = "sdpa",
    **others: Any,
) -> None:
    """What runs in TRL's process: as many samples a step, one optimizer step, the same loss, reward and prompts.

    Args:
        batch: samples that are computed at once, by default all of a step.
        attention: an implementation of transformers.
        others: fields of `GRPOConfig`, instead of those that are chosen here.
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
            phases = {"generate": seconds["generate"] - seconds["publish"], "reward": seconds["reward"]}
            phases |= {"publish": seconds["publish"]} if args.use_vllm else {}
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
    chosen = {
        "output_dir": str(rows.parent / "trl"),
        "use_cpu": not cuda,
        "bf16": cuda,
        "tf32": True if cuda else None,
        "max_steps": steps,
        "per_device_train_batch_size": batch,
        "gradient_accumulation_steps": num_samples // batch,
        "num_generations": rollout.samples_per_prompt,
        "max_completion_length": rollout.sampling.max_response_tokens,
        "temperature": rollout.sampling.temperature,
        "top_p": rollout.sampling.top_p,
        "top_k": 0,
        "beta": 0.0,
        "learning_rate": optimizer["lr"],
        "adam_beta2": optimizer["adam_beta2"],
        "max_grad_norm": optimizer["clip_grad"],
        "lr_scheduler_type": "constant",
        "gradient_checkpointing": False,
        "save_strategy": "no",
        "report_to": [],
        "logging_steps": 1,
        "disable_tqdm": True,
        "seed": cfg.run.seed,
        "vllm_importance_sampling_correction": False,
        "vllm_max_model_length": rollout.max_prompt_tokens + rollout.sampling.max_response_tokens,
    }
    settings = GRPOConfig(**chosen | others)
    trained = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation=attention)
    trainer = Timed(trained, [score], settings, train_dataset=data, processing_class=tokenizer, callbacks=[Rows()])
    if settings.use_vllm:
        publish = trainer.vllm_generation.sync_weights

        def timed_publish() -> None:
            with timed("publish"):
                publish()

        trainer.vllm_generation.sync_weights = timed_publish
    trainer.train()
