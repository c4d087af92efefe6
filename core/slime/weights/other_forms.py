"""Weights of other forms than safetensors that transformers reads: what they are, and how such are made of them."""

from __future__ import annotations

import re
from glob import escape
from pathlib import Path

from slime.data.tokenizer_files import read_object
from slime.errors import SlimeError
from slime.weights.file_tensors import INDEX, SINGLE, damaged, shards

ADAPTER = "adapter_config.json"
ADAPTERS = (ADAPTER, "adapter_model.safetensors", "adapter_model.bin")
MEGATRONS = "metadata.json"
"""The file that Megatron-core writes last into a checkpoint of its own: the format."""
Form = tuple[tuple[str, ...], str, str]
"""Patterns of file names; what they are; what to do."""
_BESIDE = re.compile(r"(?:optimizer|scheduler|scaler|rng_state|training_args)[\w-]*\.\w+")
"""Files of a training that hold no weights."""


def merged(folder: Path) -> str:
    """The line that makes a model of an adapter and its base."""
    load = f"PEFT's AutoPeftModelForCausalLM.from_pretrained('{folder}')"
    return f"{load}.merge_and_unload().save_pretrained('{folder}-merged')"


def lacking(folder: Path) -> SlimeError:
    """Why a folder has no checkpoint to begin from: by what else lies there."""
    if not folder.is_dir():
        return SlimeError("there is no such folder", where=str(folder), todo="Check the path.")
    if gone := next((name for name in (SINGLE, INDEX) if (folder / name).is_symlink()), None):
        return damaged(f"'{gone}' is a link to a file that is not there", folder)
    if told := recognised(folder):
        return told
    if inside := sorted(path.parent.name for name in (SINGLE, INDEX) for path in folder.glob(f"*/{name}")):
        what = f"neither {INDEX} nor {SINGLE} is there, but in {', '.join(map(repr, inside[:3]))}"
        return SlimeError(what, where=str(folder), todo=f"Name {folder / inside[0]}.")
    if any(folder.glob(".cache/huggingface/download/*.incomplete")):
        return SlimeError("its download is not complete", where=str(folder), todo="Run the same 'hf download' again.")
    todo = "Fetch the weights, or set model.init=random."
    return SlimeError(f"there is neither {INDEX} nor {SINGLE}", where=str(folder), todo=todo)


def recognised(folder: Path) -> SlimeError | None:
    """The form of weights in a folder without any that slime reads, and how to make such of them; None: there is
    nothing that is known."""
    for patterns, what, todo in (*_of_safetensors(folder), *_FORMS):
        there = {path.name for pattern in patterns for path in folder.glob(pattern)}
        if found := sorted(name for name in there if not _BESIDE.fullmatch(name)):
            names = f"'{found[0]}'" + (f" (and {len(found) - 1} more)" if len(found) > 1 else "")
            known = {"folder": folder, "file": found[0], "base": _base(folder), "merged": merged(folder)}
            variant = found[0].split(".")[-2:][0]  # model.safetensors.index.<variant>.json
            return SlimeError(what.format(names=names), where=str(folder), todo=todo.format(**known, variant=variant))
    return None


def _base(folder: Path) -> str:
    """The model that an adapter belongs to, as its config says."""
    found = read_object(folder / ADAPTER).get("base_model_name_or_path")
    return f"'{found}'" if found else "its base model"


def _of_safetensors(folder: Path) -> list[Form]:
    one = [file.name for file in folder.glob("*.safetensors")]
    rename = f"If it holds the whole model, rename it: mv {{folder}}/{{file}} {{folder}}/{SINGLE}."
    return [
        (
            ADAPTERS,
            "only an adapter is there ({names}), and no model",
            "Merge it into {base}: {merged}.",
        ),
        (
            tuple(shards(folder)),
            f"the shard {{names}} is there, but no {INDEX}",
            f"Fetch {INDEX}, which says where each tensor lies.",
        ),
        (
            ("consolidated*.safetensors",),
            "{names} has the publisher's own names of tensors, not those of transformers",
            "Fetch the files model*.safetensors of the same repository.",
        ),
        (
            (f"{INDEX.removesuffix('.json')}.*.json",),
            "{names} is the index of a variant, which is read only where it is asked for",
            _saved("variant='{variant}'"),
        ),
        (
            tuple(map(escape, one)),
            f"{{names}} is there, but neither {INDEX} nor {SINGLE}",
            rename if len(one) == 1 else f"Fetch {INDEX}, which says where each tensor lies.",
        ),
    ]


def _saved(how: str = "", of_tokens: str = "") -> str:
    """The line that writes a folder again as transformers writes it."""
    load = f"t.AutoModelForCausalLM.from_pretrained(f, dtype='auto'{f', {how}' if how else ''})"
    load_tokens = f"t.AutoTokenizer.from_pretrained(f{f', {of_tokens}' if of_tokens else ''})"
    tokens = f"{load_tokens}.save_pretrained(f + '-safetensors')"
    line = f"import transformers as t; f = '{{folder}}'; {load}.save_pretrained(f + '-safetensors'); {tokens}"
    return f'Write them as safetensors and take that folder: python -c "{line}".'


_FORMS: tuple[Form, ...] = (
    (
        ("pytorch_model_fsdp.bin",),
        "the weights are there as FSDP's whole state dict ({names}), not as safetensors",
        f"Rename it to pytorch_model.bin. {_saved()}",
    ),
    (
        ("pytorch_model*.bin", "pytorch_model.bin.index.json"),
        "the weights are there as {names}, not as safetensors",
        _saved(),
    ),
    (
        ("*.gguf",),
        "the weights are there as GGUF ({names}), which is for inference",
        _saved("gguf_file='{file}'", of_tokens="gguf_file='{file}'"),
    ),
    (
        ("consolidated.*.pth", "params.json"),
        "the weights are in the form of Meta's own code ({names})",
        "Fetch the files for transformers, config.json and model*.safetensors: often a repository whose name has -hf.",
    ),
    (
        ("pytorch_model_fsdp_*",),
        "the weights are FSDP's shards ({names}), as accelerate saves them",
        "Run 'accelerate merge-weights {folder}/{file} {folder}', which writes model.safetensors.",
    ),
    (
        ("global_step*", "zero_to_fp32.py", "zero_pp_rank_*", "mp_rank_*"),
        "it is a checkpoint of DeepSpeed ({names}), with optimizer states",
        "Run 'python {folder}/zero_to_fp32.py {folder} {folder} --safe_serialization', which writes model.safetensors.",
    ),
    (
        ("model_world_size_*",),
        "the weights are FSDP's shards ({names}), as verl saves them",
        "Run 'python -m verl.model_merger merge --backend fsdp --local_dir {folder} --target_dir {folder}-hf'.",
    ),
    (
        ("iter_*", "latest_checkpointed_iteration.txt"),
        "it is a checkpoint of Megatron-LM ({names})",
        "Export it by the tool that wrote it (Megatron-Bridge: export_ckpt), and name the exported folder.",
    ),
    (
        (MEGATRONS,),
        "it is a checkpoint of Megatron-core ({names})",
        "Set model.weights={folder}, and model.path to the HF folder of the same model.",
    ),
    (
        ("*.distcp",),
        "it is a checkpoint of torch.distributed ({names})",
        "Run 'python -m torch.distributed.checkpoint.format_utils dcp_to_torch {folder} {folder}.pt', load that into "
        "transformers' model, and save it by save_pretrained.",
    ),
    (
        ("tf_model*.h5", "flax_model*.msgpack"),
        "the weights are of TensorFlow or Flax ({names})",
        "Load them by a transformers before 5 (from_tf=True or from_flax=True), and save them by save_pretrained.",
    ),
    (
        ("*.onnx", "onnx/*.onnx"),
        "the weights are a graph of ONNX ({names}), which is for inference",
        "Fetch the safetensors.",
    ),
    (
        ("*.pth", "*.pt", "*.ckpt"),
        "there are no safetensors, but {names}, a file of torch.save",
        "If it is a state dict, load it into transformers' model, and save that by save_pretrained.",
    ),
)
"""Forms of weights that are no safetensors, most telling first."""
