"""A step of slime beside a step of verl on one GPU: the same model, prompts, lengths, batch and algorithm, in turn.

    python benchmarks/against_verl.py --model models/Qwen2.5-0.5B --out FOLDER
    python benchmarks/against_verl.py --model models/SmolLM2 --out FOLDER +model=smollm2-135m +cluster=h100x1

`benchmarks/results/verl-h100.md` has what was seen. verl 0.9.1 names SGLang 0.5.12 and transformers below 5.11, so
`pip install "verl[sglang]==0.9.1"` does not resolve beside SGLang 0.5.16 (2026-11-23, Python 3.12). Beside that
release, transformers 5.12.1 and torch 2.11.0 it runs. It is installed without its needs:

    pip install --no-deps verl==0.9.1 tensordict==0.10.0 "pyvers<0.2" TransferQueue==0.1.11 torchdata==0.11.0 \
        codetiming==1.4.0 cachetools==8.0.2 multiprocess==0.70.19 importlib-metadata==8.7.0
    pip install peft datasets accelerate

`--verl-python` and `--verl-path` name another interpreter or folder where it lies.

verl at its best for one GPU and a small model: FSDP without offloading or recomputing, dynamic batches with as many
tokens as slime's, torch.compile, its engine's memory not freed between phases (`--free-cache` frees it), SGLang with
slime's settings, or vLLM with `--engine vllm` (0.24.0 is what this verl names; it pins the same torch). It packs
sequences without padding only with flash-attn, which the index has as source alone; with it installed say
`--attention flash_attention_2`. Both neither evaluate nor save. Rewards are the last number of a response
compared with the label. `FOLDER` keeps the rows and the output of both; either is ended after `--limit` seconds, and
what it had done till then is counted. Words of slime's command line may follow, as in the second command. With
`--alone` slime does not run, and several settings of verl can be put into one table: see `beside.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import beside
from beside import row_of, watched

RUN = ["+model=qwen2.5-0.5b", "+cluster=h200x1", "task=word-problems"]


def read_verl(rows: Sequence[Mapping[str, Any]], num_samples: int) -> list[dict[str, float]]:
    """As `read_slime`. Its rows have no time of their own: `watched` adds `seen`."""
    return [
        row_of(
            row["seen"],
            "timing_s/",
            row["data"],
            row["data"]["response_length/mean"] * num_samples,
            row["data"]["critic/score/mean"],
        )
        for row in rows
        if "timing_s/step" in row["data"]
    ]


def write_prompts(source: Path, out: Path) -> None:
    """slime's prompts in verl's columns."""
    import pyarrow
    from pyarrow import parquet

    rows = [json.loads(line) for line in source.read_text().splitlines()]
    table = [
        {
            "data_source": "word-problems",
            "prompt": row["prompt"],
            "reward_model": {"style": "rule", "ground_truth": row["label"]},
            "extra_info": {"index": number},
        }
        for number, row in enumerate(rows)
    ]
    parquet.write_table(pyarrow.Table.from_pylist(table), out)


def verl_words(
    cfg: Any, model: Path, data: Path, steps: int, *, attention: str, free_cache: bool, served_by: str = "sglang"
) -> list[str]:
    """verl's keys for what a config of slime says; fields of SGLang go to its engine as they are, if that serves."""
    rollout, algo, optimizer = cfg.rollout, cfg.algo, cfg.train.optimizer
    actor, engine = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
    served = {name: value for name, value in rollout.sglang.items() if name not in ("dtype", "mem_fraction_static")}
    served["enable_memory_saver"] = free_cache
    served = served if served_by == "sglang" else {}
    return [
        "algorithm.adv_estimator=grpo",
        "algorithm.use_kl_in_reward=false",
        f"data.train_files={data}",
        f"data.val_files={data}",
        f"data.train_batch_size={rollout.prompts_per_step}",
        f"data.max_prompt_length={rollout.max_prompt_tokens}",
        f"data.max_response_length={rollout.sampling.max_response_tokens}",
        f"actor_rollout_ref.model.path={model}",
        f"+actor_rollout_ref.model.override_config.attn_implementation={attention}",
        f"actor_rollout_ref.model.use_remove_padding={str(attention.startswith('flash')).lower()}",
        "actor_rollout_ref.model.enable_gradient_checkpointing=false",
        f"{actor}.ppo_mini_batch_size={rollout.prompts_per_step // cfg.train.steps_per_rollout}",
        f"{actor}.use_dynamic_bsz=true",
        f"{actor}.ppo_max_token_len_per_gpu={cfg.train.max_tokens_per_micro_batch}",
        f"{actor}.clip_ratio_low={algo.clip_low}",
        f"{actor}.clip_ratio_high={algo.clip_high}",
        f"{actor}.loss_agg_mode=token-mean",
        f"{actor}.entropy_coeff={algo.entropy_coef}",
        f"{actor}.use_kl_loss=false",
        f"{actor}.grad_clip={optimizer['clip_grad']}",
        f"{actor}.optim.lr={optimizer['lr']}",
        f"{actor}.optim.weight_decay={optimizer['weight_decay']}",
        f"{actor}.optim.betas=[0.9,{optimizer['adam_beta2']}]",
        f"{engine}.name={served_by}",
        *(f"+{engine}.engine_kwargs.sglang.{name}={json.dumps(value)}" for name, value in served.items()),
        f"{engine}.n={rollout.samples_per_prompt}",
        f"{engine}.temperature={rollout.sampling.temperature}",
        f"{engine}.tensor_model_parallel_size=1",
        f"{engine}.gpu_memory_utilization={rollout.sglang['mem_fraction_static']}",
        f"{engine}.max_num_seqs={rollout.max_requests_per_engine}",
        f"{engine}.dtype={rollout.sglang['dtype']}",
        f"{engine}.free_cache_engine={str(free_cache).lower()}",
        f"reward.custom_reward_function.path={Path(__file__).resolve().with_name('last_number.py')}",
        "reward.num_workers=1",
        "trainer.logger=[file]",
        "trainer.nnodes=1",
        "trainer.n_gpus_per_node=1",
        "trainer.val_before_train=false",
        "trainer.resume_mode=disable",
        f"trainer.total_training_steps={steps}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="Hugging Face folder")
    parser.add_argument("--out", type=Path, required=True, help="new folder for rows and output")
    parser.add_argument("--verl-python", type=Path, default=Path(sys.executable), help="the interpreter that has verl")
    parser.add_argument("--verl-path", default="", help="what that interpreter finds before PYTHONPATH")
    parser.add_argument("--steps", type=int, default=40, help="of each, warm-up included")
    parser.add_argument("--limit", type=float, default=200.0, metavar="SECONDS", help="of each, start included")
    parser.add_argument("--attention", default="sdpa", help="of verl's trainer: sdpa, or flash_attention_2")
    parser.add_argument("--engine", choices=("sglang", "vllm"), default="sglang", help="of verl")
    parser.add_argument("--name", default="verl", help="in the table, of these settings of verl")
    parser.add_argument("--alone", action="store_true", help="without slime")
    parser.add_argument("--free-cache", action="store_true", help="verl's engine frees its memory between phases")
    parser.add_argument("--verl-words", nargs="*", default=[], metavar="WORD", help="more of verl's command line")
    options, arguments = parser.parse_known_args()

    from slime.compose.compose import compose
    from slime.config.paths import resolve

    options.out.mkdir(parents=True, exist_ok=options.alone)
    model, out = options.model.absolute(), options.out.absolute()
    words = beside.words(RUN, arguments)
    cfg = compose([*words, f"model.path={model}"])
    num_samples = cfg.rollout.prompts_per_step * cfg.rollout.samples_per_prompt
    write_prompts(resolve(str(cfg.data.path)), out / "prompts.parquet")
    settings = {"attention": options.attention, "free_cache": options.free_cache, "served_by": options.engine}
    theirs = verl_words(cfg, model, out / "prompts.parquet", options.steps, **settings)
    command = [str(options.verl_python), "-m", "verl.trainer.main_ppo", *theirs, *options.verl_words]
    file = beside.file_name(options.name)
    rows = out / f"{file}.jsonl"
    path = os.pathsep.join(filter(None, [options.verl_path, os.environ.get("PYTHONPATH", "")]))
    environment = {"VERL_FILE_LOGGER_PATH": str(rows), "PYTHONPATH": path, "RAY_ADDRESS": "local"}
    verl = watched(options.name, command, rows, out / f"{file}.log", options.limit, **environment)
    slime = [] if options.alone else [beside.slime(model, out, options.steps, options.limit, words)]
    theirs_read = (verl, read_verl(verl.rows, num_samples))
    beside.tell(out, beside.size(cfg, model), *slime, theirs_read, alone=options.alone)


if __name__ == "__main__":
    main()
