"""Log-probs of a published model on this machine's CPU: transformers' class, slime's trainer and an SGLang engine.

    python benchmarks/published.py qwen2.5-coder-0.5b models/Qwen2.5-Coder-0.5B-Instruct
    python benchmarks/published_parity.py models/Qwen2.5-Coder-0.5B-Instruct

The engine samples answers to a few prompts at temperature 1. Its weights are those of the checkpoint, published as in a
run. All three score the same tokens in fp32. Printed are the answers, and the largest and the mean difference of a
token's log-prob to transformers', in nats.
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


def of_trainer(rank: Rank, folder: Path, sequences: Sequence[list[int]]) -> list[Tensor]:
    """[tokens - 1] of each sequence: log-probs of its tokens, by the model that a trainer rank builds, in one pack."""
    from megatron_core_portable import cpu_stands_in_for_cuda
    from slime_megatron.train import megatron
    from slime_megatron.train.model.packed.sequences import PackedSequences
    from slime_megatron.train.weights.load import load_hf

    hf = read_hf_config(str(folder))
    cfg = run_config(hf["model_type"], folder, {})
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
    arguments = parser.parse_args()
    folder = arguments.model.resolve()
    prompts = prompt_tokens(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    exported = as_exported(model, folder)
    with (
        tempfile.TemporaryDirectory() as scratch,
        running_engine(folder, Path(scratch) / "engine.log", max_total_tokens=2048) as engine,
    ):
        publish(iter(exported.items()), [engine.endpoint], 1, BUCKET_BYTES)
        completions = asyncio.run(answers(engine.endpoint, prompts, arguments.tokens))
    sequences = [[*prompt, *each.tokens] for prompt, each in zip(prompts, completions, strict=True)]
    whole = [of_transformers(model, sequence) for sequence in sequences]
    answered = [scores[len(prompt) - 1 :] for scores, prompt in zip(whole, prompts, strict=True)]
    [trained] = run_ranks(of_trainer, 1, folder, sequences, timeout_s=SECONDS)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    print(conditions())
    for prompt, each in zip(PROMPTS, completions, strict=True):
        print(f"\n{prompt}\n  {tokenizer.decode(each.tokens)!r}")
    print("\n| against transformers | tokens | largest | mean |\n|---|---|---|---|")
    print(compare("engine, its own answers", [each.logprobs for each in completions], answered))
    print(compare("trainer, prompts and answers", trained, whole))


if __name__ == "__main__":
    main()
