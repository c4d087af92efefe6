"""What reads exports: versions of transformers that people have, SGLang's server, and PEFT.

usage: python benchmarks/exports.py [MODEL ...] VERSION=FOLDER ...

Each FOLDER is one of `pip install --no-deps --target FOLDER transformers==VERSION huggingface_hub==H tokenizers==T`, H
and T as this transformers asks for. Sources are as the installed transformers saves model and tokenizer.
A cell is the largest difference of any logit from the installed transformers' (of any token's log-prob for SGLang), or
the end of an error. A version agrees on the tokens of a conversation too, or the cell says that it does not.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import torch
from safetensors.torch import load_file

from slime.compose.compose import examine
from slime.config.keys import default_config
from slime.net import LOOPBACK
from slime_megatron.train.weights.save_hf import save_hf
from slime_testing.engines import server
from slime_testing.models import write_checkpoint
from slime_testing.ranks import Rank, run_ranks
from slime_testing.recorded import recorded_samples

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 8.0,
    "original_max_position_embeddings": 64,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
BY_LAYER = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}
MODELS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "llama": ("slime_plugin_llama/assets/llama-tiny", {}),
    "llama, scaled rotary": ("slime_plugin_llama/assets/llama-tiny", {"rope_parameters": LLAMA3}),
    "qwen2": ("slime_plugin_qwen2/assets/qwen2-tiny", {}),
    "qwen3": ("slime_plugin_qwen3/assets/qwen3-tiny", {}),
    "qwen3_moe": ("slime_plugin_qwen3/assets/qwen3-moe-tiny", {}),
    "gemma3": ("slime_plugin_gemma3/assets/gemma3-tiny", {}),
    "gemma3, scaled rotary": ("slime_plugin_gemma3/assets/gemma3-tiny", {"rope_parameters": BY_LAYER}),
    "glm4": ("slime_plugin_glm4/assets/glm4-tiny", {}),
    "glm4_moe": ("slime_plugin_glm4/assets/glm4-moe-tiny", {}),
    "glm4_moe_lite": ("slime_plugin_glm4/assets/glm4-moe-lite-tiny", {}),
    "deepseek_v3": (
        "slime_plugin_deepseek_v3/assets/deepseek-v3-tiny",
        {"rope_parameters": YARN, "rope_scaling": None, "rope_theta": None},
    ),
    "glm_moe_dsa": ("slime_plugin_glm5/assets/glm5-tiny", {}),
}
ADAPTED = ("llama", "qwen2", "glm4", "qwen3_moe")
TOKENS = list(range(3, 90))
READ = """
import json, sys, torch, transformers
torch.set_num_threads(1)
transformers.logging.set_verbosity_error()
load = transformers.AutoModelForCausalLM.from_pretrained
talk = [{"role": "user", "content": "What is 6 + 7? <sop> [gMASK]"}]

def read(folder, dtype, adapter):
    model, told = load(folder, torch_dtype="auto", output_loading_info=True)
    assert not told["missing_keys"], told["missing_keys"]
    assert str(model.dtype) == dtype, model.dtype
    transformers.GenerationConfig.from_pretrained(folder)
    if adapter:
        import peft
        model = peft.PeftModel.from_pretrained(model, adapter)
    with torch.no_grad():
        return model.float().eval()(torch.arange(3, 90)[None]).logits[0]

def tokens(folder):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    text = tokenizer.apply_chat_template(talk, tokenize=False, add_generation_prompt=True)
    found = tokenizer(text)["input_ids"]
    return found, tokenizer.decode(found, skip_special_tokens=True)

def tried(call, *arguments):
    try:
        return call(*arguments)
    except Exception as error:
        return f"{type(error).__name__}: {error}".splitlines()[0][:110]

found = {}
for name, arguments in json.loads(sys.argv[1]).items():
    found[name] = {"logits": tried(read, *arguments), "tokens": tried(tokens, arguments[0])}
torch.save(found, sys.argv[2])
"""
Wanted = dict[str, tuple[str, str, str]]
"""By the name of a row: a folder, the dtype that it is to be loaded in, and an adapter's folder, or nothing."""


def source_of(model: str, folder: Path, dtype: torch.dtype) -> Path:
    """A random model and its tokenizer, as the installed transformers saves them."""
    from transformers import AutoTokenizer

    asset, changes = MODELS[model]
    package, _, inside = asset.partition("/")
    source = Path(shutil.copytree(str(files(package) / inside), folder / "source"))
    hf = {**json.loads((source / "config.json").read_text()), **changes}
    hf = {name: value for name, value in hf.items() if value is not None and name != "num_nextn_predict_layers"}
    write_checkpoint(hf, source, dtype=dtype)
    AutoTokenizer.from_pretrained(source).save_pretrained(source)
    return source


def read(wanted: Wanted, library: str, folder: Path) -> dict[str, dict[str, Any]]:
    """What one version, or the installed one, finds in each folder; an error as text."""
    environment = os.environ | ({"PYTHONPATH": library} if library else {})
    arguments = [sys.executable, "-c", READ, json.dumps(wanted), str(folder / "found.pt")]
    subprocess.run(arguments, env=environment, check=True, stderr=subprocess.DEVNULL)
    return dict(torch.load(folder / "found.pt"))


def _beside(wanted: Wanted, name: str) -> Wanted:
    """The folders of this name beside those, without adapters."""
    return {row: (str(Path(folder).with_name(name)), dtype, "") for row, (folder, dtype, _) in wanted.items()}


def cell(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """Two findings compared."""
    logits = found["logits"] if isinstance(wanted["logits"], torch.Tensor) else wanted["logits"]
    told = logits if isinstance(logits, str) else f"{float((logits - wanted['logits']).abs().max()):.1e}"
    if found["tokens"] == wanted["tokens"]:
        return told
    return f"{told}; {found['tokens'] if isinstance(found['tokens'], str) else 'other tokens'}"


def served(export: Path, logits: torch.Tensor) -> str:
    """The largest difference of a token's log-prob in SGLang's server, which loads the folder itself."""
    fields = ["rollout.sglang.dtype=float32", "rollout.sglang.enable_deterministic_inference=false"]
    composed = examine(["+model=glm4-tiny", "+cluster=local", f"rollout.engines.read.model={export}", *fields])
    assert composed.topology
    if composed.problems:
        return str(composed.problems[0])[:110]
    engine = server(composed.topology, 1, host=LOOPBACK, log=export.with_name("log"))
    try:
        at = engine.start()
        sampling = {"max_new_tokens": 1, "temperature": 0}
        body = {"input_ids": TOKENS, "sampling_params": sampling, "return_logprob": True, "logprob_start_len": 0}
        headers = {**at.headers, "Content-Type": "application/json"}
        with urlopen(Request(f"{at.url}/generate", json.dumps(body).encode(), headers), timeout=200) as answer:
            told = json.load(answer)["meta_info"]["input_token_logprobs"][1:]
    finally:
        engine.stop()
    theirs = torch.tensor([logprob for logprob, *_ in told])
    following = torch.tensor(TOKENS)[1:, None]
    return f"{float((logits.log_softmax(-1)[:-1].gather(1, following)[:, 0] - theirs).abs().max()):.1e}"


def of_models(chosen: list[str], versions: Mapping[str, str], folder: Path) -> None:
    exports: Wanted = {}
    for name in chosen:
        place = folder / name.replace(", ", "-").replace(" ", "-")
        place.mkdir()
        source, export = source_of(name, place, torch.bfloat16), place / "export"
        tensors = load_file(source / "model.safetensors").items()
        save_hf(sorted(tensors, key=lambda each: "embed" not in each[0]), source, export)  # as a trainer begins
        exports[name] = str(export), "torch.bfloat16", ""
    wanted = read(_beside(exports, "source"), "", folder)
    found = [read(exports, library, folder) for library in versions.values()]
    print("| model |", " | ".join(versions), "| SGLang |")
    print("|---|", "---|" * (len(versions) + 1), sep="")
    for name in chosen:
        cells = [cell(each[name], wanted[name]) for each in found]
        logits = wanted[name]["logits"]
        cells.append(served(Path(exports[name][0]), logits) if isinstance(logits, torch.Tensor) else logits)
        print(f"| {name} |", " | ".join(cells), "|", flush=True)


def adapt(rank: Rank, family: str, base: str, adapter: Path, merged: Path) -> None:
    """Two steps of a LoRA run, and both of its exports."""
    from slime.train.packing import pack
    from slime_megatron.train.trainer import Trainer

    cfg: Any = default_config()
    cfg.model.family, cfg.model.path, cfg.run.num_steps = family, base, 2
    cfg.train.optimizer, cfg.sft.lr, cfg.sft.num_steps, cfg.train.lora.rank = {"lr": 1e-2}, 1e-2, 2, 4
    cfg.train.lora.expert_rank = 2 if "moe" in family else None
    trainer = Trainer(cfg, *rank)
    trainer.init_weights()
    samples = recorded_samples(8, trainer.hf["vocab_size"])
    for step in range(2):
        packed = pack(samples, num_dp=1, align=1, max_tokens=512, loss_mean=cfg.algo.loss_mean)
        trainer.train(packed, step, "sft")
    trainer.save_adapters(adapter)
    save_hf(trainer.export(), Path(base), merged)


def of_adapters(versions: Mapping[str, str], folder: Path) -> None:
    """Base and adapter by PEFT, against the merged export by the installed transformers; and how far the base is."""
    bases: Wanted = {}
    for name in ADAPTED:
        place = folder / f"{name}-adapted"
        place.mkdir()
        base, adapter = source_of(name, place, torch.float32), place / "adapter"
        run_ranks(adapt, 1, name, str(base), adapter, place / "merged", timeout_s=300)
        bases[name] = str(base), "torch.float32", str(adapter)
    wanted = read(_beside(bases, "merged"), "", folder)
    found = [read(bases, library, folder) for library in versions.values()]
    found.append(read(_beside(bases, "source"), "", folder))
    print("\n| adapters of |", " | ".join(versions), "| without them |")
    print("|---|", "---|" * len(found), sep="")
    for name in ADAPTED:
        same = {"tokens": wanted[name]["tokens"]}  # the base is no export of ours
        print(f"| {name} |", " | ".join(cell(each[name] | same, wanted[name]) for each in found), "|", flush=True)


def main(arguments: list[str]) -> None:
    versions = dict(argument.split("=", 1) for argument in arguments if "=" in argument)
    with tempfile.TemporaryDirectory() as folder:
        of_models([name for name in arguments if "=" not in name] or list(MODELS), versions, Path(folder))
        of_adapters({"installed": "", **versions}, Path(folder))


if __name__ == "__main__":
    main(sys.argv[1:])
