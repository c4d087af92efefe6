"""Log-probs of a published model on this machine's CPU: transformers' class, slime's trainer and an SGLang engine.

    python benchmarks/published.py qwen2.5-coder-0.5b models/Qwen2.5-Coder-0.5B-Instruct
    python benchmarks/published_parity.py models/Qwen2.5-Coder-0.5B-Instruct
    python benchmarks/published_parity.py models/SmolLM2-135M-Instruct --bf16

The engine samples answers to a few prompts at temperature 1. Its weights are those of the checkpoint, published as in a
run. All three score the same tokens in fp32. Printed are the answers, and the largest and the mean difference of a
token's log-prob to transformers', in nats.

With `--bf16` engine and trainer compute in bf16, transformers in fp32 with the same weights: once with logits in bf16,
once with `model.fp32_lm_head`. Each engine's own answers are compared with the trainer, too.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from machine import conditions
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from slime import plugins
from slime.config.hf import read_hf_config
from slime.engine_client.client import Completion
from slime.net import Endpoint
from slime_sglang.engine.driver.client import SGLangClient
from slime_testing.engines import as_exported, running_engine
from slime_testing.models import run_config
from slime_testing.publishing import publish
from slime_testing.ranks import Rank, run_ranks

PROMPTS = (
    "There are 7 boxes with 12 books in each. How many books are there in all?",
    "Write a Python function that returns the n-th Fibonacci number.",
    "Use each of the numbers 3, 5, 8 exactly once, with + - * / and brackets, to make 16.",
)
BUCKET_BYTES = 64 << 20
SECONDS = 1200.0


def prompt_tokens(folder: Path) -> list[list[int]]:
    """The prompts by the model's chat template, or as they are for a model without one."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    if tokenizer.chat_template is None:
        return [tokenizer(prompt)["input_ids"] for prompt in PROMPTS]
    messages = [[{"role": "user", "content": prompt}] for prompt in PROMPTS]
    texts = [tokenizer.apply_chat_template(each, tokenize=False, add_generation_prompt=True) for each in messages]
    return [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]


async def answers(engine: Endpoint, prompts: Sequence[list[int]], num_tokens: int) -> list[Completion]:
    """An answer to each prompt, all asked at once."""
    client = SGLangClient(engine)
    sampling = {"max_new_tokens": num_tokens, "temperature": 1.0, "ignore_eos": True}
    try:
        return await asyncio.gather(*(client.generate(prompt, sampling) for prompt in prompts))
    finally:
        await client.close()


def of_trainer(rank: Rank, folder: Path, sequences: Sequence[list[int]], bf16: bool, fp32_head: bool) -> list[Tensor]:
    """[tokens - 1] of each sequence: log-probs of its tokens, by the model that a trainer rank builds, in one pack."""
    from megatron_core_portable import cpu_stands_in_for_cuda
    from slime_megatron.train import megatron
    from slime_megatron.train.model.packed.sequences import PackedSequences
    from slime_megatron.train.weights.load import load_hf

    hf = read_hf_config(str(folder))
    cfg = run_config(hf["model_type"], folder, {"bf16": bf16})
    cfg.model.fp32_lm_head = fp32_head
    megatron.initialize(cfg, *rank)
    bridge = plugins.load().models.create(cfg.model.family)
    built = megatron.build(cfg, bridge, hf)
    load_hf(built.modules, bridge.weight_mapping(hf), folder)
    lengths = [len(sequence) for sequence in sequences]
    tokens = torch.tensor([token for sequence in sequences for token in sequence])[None]
    layout = PackedSequences.of([0, *accumulate(lengths)], 1, 0, tokens.device)
    [module] = built.modules
    with cpu_stands_in_for_cuda(), torch.no_grad():
        labels = tokens.roll(-1, dims=1)
        scores = module.eval()(tokens, torch.zeros_like(tokens), None, labels=labels, packed_seq_params=layout)
    return [each[:-1].clone() for each in scores[0].split(lengths)]


@torch.no_grad()
def of_transformers(model: torch.nn.Module, tokens: list[int]) -> Tensor:
    """[tokens - 1]"""
    ids = torch.tensor(tokens)[None]
    logits = model(ids).logits[0, :-1].float()
    return logits.log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]


def compare(name: str, found: Sequence[Any], wanted: Sequence[Tensor]) -> str:
    """A row of the table."""
    off = torch.cat([(torch.as_tensor(f) - w).abs() for f, w in zip(found, wanted, strict=True)])
    return f"| {name} | {len(off)} | {off.max():.1e} | {off.mean():.1e} |"


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare log-probs of a published model on this machine's CPU.")
    parser.add_argument("model", type=Path, help="HF folder with weights")
    parser.add_argument("--tokens", type=int, default=48, help="of an answer")
    parser.add_argument("--bf16", action="store_true", help="engine and trainer, without and with fp32 logits")
    arguments = parser.parse_args()
    folder = arguments.model.resolve()
    dtype = torch.bfloat16 if arguments.bf16 else torch.float32
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).float().eval()
    print(conditions())
    for fp32_head in (False, True) if arguments.bf16 else (False,):
        print(f"\n## {str(dtype).removeprefix('torch.')}{', logits in fp32' if fp32_head else ''}")
        measure(folder, model, dtype, arguments.tokens, fp32_head)


def measure(folder: Path, model: torch.nn.Module, dtype: torch.dtype, num_tokens: int, fp32_head: bool) -> None:
    """Print the answers and the table."""
    prompts = prompt_tokens(folder)
    exported = {name: tensor.to(dtype) for name, tensor in as_exported(model, folder).items()}
    fields = {"dtype": str(dtype).removeprefix("torch."), "max_total_tokens": 2048, "enable_fp32_lm_head": fp32_head}
    with tempfile.TemporaryDirectory() as scratch, running_engine(folder, Path(scratch) / "log", **fields) as engine:
        publish(iter(exported.items()), [engine.endpoint], 1, BUCKET_BYTES)
        completions = asyncio.run(answers(engine.endpoint, prompts, num_tokens))
    sequences = [[*prompt, *each.tokens] for prompt, each in zip(prompts, completions, strict=True)]
    whole = [of_transformers(model, sequence) for sequence in sequences]
    is_bf16 = dtype is torch.bfloat16
    [trained] = run_ranks(of_trainer, 1, folder, sequences, is_bf16, fp32_head, timeout_s=SECONDS)
    tokenizer, own = AutoTokenizer.from_pretrained(folder), [each.logprobs for each in completions]
    for prompt, each in zip(PROMPTS, completions, strict=True):
        print(f"\n{prompt}\n  {tokenizer.decode(each.tokens)!r}")
    answered, trainers = (
        [scores[len(prompt) - 1 :] for scores, prompt in zip(of_all, prompts, strict=True)]
        for of_all in (whole, trained)
    )
    print("\n| compared | tokens | largest | mean |\n|---|---|---|---|")
    print(compare("engine with transformers, its own answers", own, answered))
    print(compare("trainer with transformers, prompts and answers", trained, whole))
    print(compare("engine with trainer, its own answers", own, trainers), flush=True)


if __name__ == "__main__":
    main()
