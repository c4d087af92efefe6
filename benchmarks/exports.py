"""Whether exports load in versions of transformers that people have: the logits of each against the installed one's.

usage: python benchmarks/exports.py [MODEL ...] VERSION=FOLDER ...

Each FOLDER is one of `pip install --no-deps --target FOLDER transformers==VERSION huggingface_hub==0.36.0`. Weights and
config.json alone are read: a tokenizer_config.json is copied as it is, and one that transformers 5 wrote, with a list
as `extra_special_tokens`, is refused by 4.57.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.resources import files
from pathlib import Path

import torch
from safetensors.torch import load_file

from slime_megatron.train.weights.save_hf import save_hf
from slime_testing.models import write_checkpoint

MODELS = {
    "llama": "slime_plugin_llama/assets/llama-tiny",
    "qwen2": "slime_plugin_qwen2/assets/qwen2-tiny",
    "qwen3": "slime_plugin_qwen3/assets/qwen3-tiny",
    "qwen3_moe": "slime_plugin_qwen3/assets/qwen3-moe-tiny",
    "gemma3": "slime_plugin_gemma3/assets/gemma3-tiny",
    "glm4": "slime_plugin_glm4/assets/glm4-tiny",
    "glm4_moe": "slime_plugin_glm4/assets/glm4-moe-tiny",
    "deepseek_v3": "slime_plugin_deepseek_v3/assets/deepseek-v3-tiny",
}
READ = """
import sys, torch, transformers
torch.set_num_threads(1)
transformers.logging.set_verbosity_error()
folder, logits = sys.argv[1:]
load = transformers.AutoModelForCausalLM.from_pretrained
model, told = load(folder, torch_dtype="auto", output_loading_info=True)
assert not told["missing_keys"], told["missing_keys"]
assert model.dtype is torch.bfloat16, model.dtype
with torch.no_grad():
    torch.save(model.float().eval()(torch.arange(3, 90)[None]).logits[0], logits)
"""


def exported(asset: str, folder: Path) -> Path:
    """An export of a random model, which transformers' own class wrote."""
    package, _, inside = asset.partition("/")
    source = Path(shutil.copytree(str(files(package) / inside), folder / "source"))
    hf = json.loads((source / "config.json").read_text())
    hf.pop("num_nextn_predict_layers", None)
    write_checkpoint(hf, source, dtype=torch.bfloat16)
    save_hf(load_file(source / "model.safetensors").items(), source, folder / "export")
    return folder / "export"


def read(export: Path, library: str | None) -> torch.Tensor | str:
    """Logits of one version, or the last line of its error."""
    logits = export.with_name("logits.pt")
    environment = os.environ | ({"PYTHONPATH": library} if library else {})
    done = subprocess.run([sys.executable, "-c", READ, export, logits], env=environment, capture_output=True, text=True)
    return torch.load(logits) if done.returncode == 0 else done.stderr.strip().splitlines()[-1][:100]


def main(arguments: list[str]) -> None:
    versions = dict(argument.split("=", 1) for argument in arguments if "=" in argument)
    chosen = [argument for argument in arguments if "=" not in argument] or list(MODELS)
    print("| model |", " | ".join(versions), "|")
    print("|---|", "---|" * len(versions), sep="")
    for name in chosen:
        with tempfile.TemporaryDirectory() as folder:
            export = exported(MODELS[name], Path(folder))
            ours = read(export, None)
            cells = []
            for library in versions.values():
                found = read(export, library)
                both = isinstance(found, torch.Tensor) and isinstance(ours, torch.Tensor)
                cells.append(
                    f"{float((found - ours).abs().max()):.1e}" if both else str(found if found != ours else ours)
                )
            print(f"| {name} |", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
