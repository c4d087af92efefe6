"""Why the tensors of a folder are not those of its config.json: quantised ones, and names that something has changed.

No torch. An error names what was done to the weights, since that is what has to be undone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from slime.config.hf import QUANTIZATION, read_hf_config
from slime.config.paths import resolve
from slime.data.tokenizer_files import read_object
from slime.errors import SlimeError
from slime.weights.elsewhere import checkpoint_of, has_weights
from slime.weights.file_tensors import FileTensor, header
from slime.weights.other_forms import recognised

MODELOPT = "hf_quant_config.json"
"""The file in which NVIDIA's ModelOpt says how it has quantised; SGLang reads it, too."""
_FLOATS = ("BF16", "F16", "F32", "F64")
_NAMES = {
    "awq": "AWQ", "gptq": "GPTQ", "mxfp4": "MXFP4", "nvfp4": "NVFP4", "modelopt": "ModelOpt", "modelopt_fp4": "NVFP4",
    "fp8": "FP8", "fbgemm_fp8": "FP8 of FBGEMM", "hqq": "HQQ", "quanto": "Quanto", "aqlm": "AQLM", "quark": "Quark",
}  # fmt: skip
_ENDINGS = (
    (".g_idx", "gptq"), (".qweight", "awq"), (".weight.absmax", "bitsandbytes"), (".weight.quant_map", "bitsandbytes"),
    (".SCB", "bitsandbytes"), (".weight_packed", "compressed-tensors"), (".weight_scale_2", "nvfp4"),
    ("_blocks", "mxfp4"), (".W_q", "hqq"), (".weight_qdata", "torchao"),
)  # fmt: skip
"""Ends of the names of tensors that only such a checkpoint has."""
_DEQUANTIZED = {
    "bitsandbytes": "load it by transformers, call dequantize(), and save it by save_pretrained",
    "mxfp4": "load it by transformers with Mxfp4Config(dequantize=True), and save it by save_pretrained",
}
_BLOCK = [128, 128]


def trainable_config(path: str, num_layers: int | None) -> dict[str, Any]:
    """Do as `slime.config.hf.read_hf_config`, of a folder whose weights, if they are there, are not quantised.

    Raises:
        SlimeError: as that; they are quantised, or another form of weights lies in the place of config.json.
    """
    folder = resolve(path)
    if not (folder / "config.json").is_file() and not has_weights(folder) and (problem := recognised(folder)):
        raise problem
    hf = read_hf_config(path, num_layers)
    if problem := quantization(folder, hf):
        raise problem
    return hf


def quantization(
    folder: Path, hf: Mapping[str, Any], tensors: Mapping[str, FileTensor] | None = None
) -> SlimeError | None:
    """The fault of weights that are quantised, or said to be; None: neither.

    Args:
        tensors: of the folder; None: they are looked up where something says that they are quantised.
    """
    said = hf.get(QUANTIZATION) or _modelopt(folder)
    if tensors is None:
        if not said:
            return None
        if has_weights(folder):
            tensors = {name: each for file in checkpoint_of(folder) for name, each in header(folder, file).items()}
    field = QUANTIZATION if hf.get(QUANTIZATION) else MODELOPT
    where = str(folder / ("config.json" if hf.get(QUANTIZATION) else MODELOPT if said else ""))
    found, method = _of_tensors(tensors) if tensors else None, _method(said) if said else None
    if said and tensors and found is None:
        dtypes = ", ".join(sorted({each.dtype for each in tensors.values() if each.dtype in _FLOATS}))
        what = f"'{field}' says that the weights are quantised ('{method}'), but they are {dtypes}"
        todo = f"Remove {field}, a rest of what the model was made from or trained with."
        return SlimeError(what, where=where, todo=todo)
    if found is None and method is None:
        return None
    kind = method if found in (None, "integers", "fp8") and method else found
    assert kind, "one of both says it"
    if (found or kind) == "fp8" and kind in ("fp8", "compressed-tensors"):
        return _fp8(folder, where, said, tensors)
    shown = _NAMES.get(kind, kind) + (f" ({field}: '{method}')" if method else "")
    also = f", or {_DEQUANTIZED[kind]}" if kind in _DEQUANTIZED else ""
    todo = f"slime trains weights in BF16, F16 or F32: name the checkpoint that it was made from{also}."
    return SlimeError(f"the weights are quantised: {shown}", where=where, todo=todo)


def _fp8(
    folder: Path, where: str, said: Mapping[str, Any] | None, tensors: Mapping[str, FileTensor] | None
) -> SlimeError:
    """The error of weights in FP8, some of which are converted."""
    what = "the weights are FP8"
    if not said:
        todo = f"config.json has no '{QUANTIZATION}': take the published one, and run 'slime convert fp8-to-bf16'."
        return SlimeError(what, where=where, todo=todo)
    held = {each.dtype for name, each in (tensors or {}).items() if name.endswith("weight")}
    if other := sorted(dtype for dtype in held if dtype.startswith("F8_") and dtype != "F8_E4M3"):
        return SlimeError(f"{what} ({other[0]})", where=where, todo=_FROM_BF16)
    block = said.get("weight_block_size")
    if block not in (None, _BLOCK):
        return SlimeError(f"{what} in blocks of {block}", where=where, todo=_FROM_BF16)
    todo = f"Run 'slime convert fp8-to-bf16 {folder} {folder}-BF16' and train from that folder"
    also = f"; rollout.fp8={folder} generates in FP8." if block else "."
    return SlimeError(what, where=f"{where}: {QUANTIZATION}", todo=todo + also)


_FROM_BF16 = "slime converts E4M3 in blocks of 128 x 128: name the checkpoint in BF16 that it was made from."


def _of_tensors(tensors: Mapping[str, FileTensor]) -> str | None:
    """How tensors are quantised, as their names and dtypes tell; None: they are not."""
    for ending, kind in _ENDINGS:
        if any(name.endswith(ending) for name in tensors):
            return kind
    matrices = {each.dtype for name, each in tensors.items() if len(each.shape) > 1 and name.endswith("weight")}
    if any(dtype.startswith("F8_") for dtype in matrices):
        return "fp8"
    return "integers" if any(dtype[0] in "IU" for dtype in matrices) else None


def _method(said: Mapping[str, Any]) -> str:
    """The method's name in `quantization_config`; older ones of bitsandbytes have no name."""
    name, algorithm = str(said.get("quant_method") or ""), str(said.get("quant_algo") or "")
    if said.keys() & {"load_in_4bit", "load_in_8bit"}:
        name = name or "bitsandbytes"
    return f"{name} {algorithm.lower()}".strip() or "?"


def _modelopt(folder: Path) -> Mapping[str, Any] | None:
    said = read_object(folder / MODELOPT).get("quantization")
    return {"quant_method": "modelopt", **said} if isinstance(said, dict) else None


_INSIDE = "Save the model inside it: model.{}.save_pretrained(...)."
_MERGE = "Merge the adapter and save the model: model.merge_and_unload().save_pretrained(...)."
_ALONE = "Name a checkpoint of its language model, of a family that slime has."
_WRAPPERS = {
    "_orig_mod": ("by torch.compile", _INSIDE.format("_orig_mod")),
    "module": ("by DistributedDataParallel or DeepSpeed", _INSIDE.format("module")),
    "_fsdp_wrapped_module": ("by FSDP", "Save FSDP's full state dict: save_pretrained(..., state_dict=...)."),
    "_checkpoint_wrapped_module": ("by activation checkpointing", "Save the model without that wrapper."),
    "base_model.model": ("by PEFT", _MERGE),
    "pretrained_model": ("by TRL's value head", _INSIDE.format("pretrained_model")),
    "language_model": ("by a model of several modalities", _ALONE),
}
_PARTS = ("_orig_mod", "module", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "base_layer")
"""Parts that wrappers of single layers leave in the middle of names."""
_SURPLUS = (
    ("lora_", "adapters are in it, not merged ('{}')", _MERGE),
    ("v_head.", "it has a value head of TRL ('{}')", _INSIDE.format("pretrained_model")),
    ("visual.", "it is a model of several modalities ('{}')", _ALONE),
    ("vision_", "it is a model of several modalities ('{}')", _ALONE),
)
"""Parts of the names of tensors that were put on a model."""
_SAMPLE = 200


def changed_names(missing: Collection[str], tied: Collection[str], unexpected: Iterable[str]) -> tuple[str, str] | None:
    """Changes of the names of tensors, and what to do; None: nothing that is known.

    Args:
        missing: names of the model that the checkpoint has not.
        tied: others that it may have.
        unexpected: names of the checkpoint that the model has not.
    """
    there = set(unexpected)
    found = sorted(there, key=lambda name: ("embed_tokens" not in name, name))
    wanted = {*missing, *tied} if missing else set[str]()
    sample = found[:_SAMPLE]
    matches = {name: match for name in sample for match in [_without(name, wanted)] if match}
    if len(matches) * 2 >= min(len(sample), len(wanted)) and matches:
        name, (run, meant) = next(iter(matches.items()))
        how, todo = _WRAPPERS.get(run, _WRAPPERS.get(run.rpartition(".")[2], ("", "")))
        known = f": they were put there {how}" if how else ""
        todo = todo or "Rename the tensors, or save the model of AutoModelForCausalLM itself."
        return f"names of tensors have '{run}.' too many ('{name}' for '{meant}'){known}", todo
    for meant in sorted(wanted, key=lambda name: "embed_tokens" not in name):
        _, _, rest = meant.partition(".")
        if rest and rest in there:
            return _base_class(meant, rest, missing)
    for mark, what, todo in _SURPLUS:
        if marked := next((name for name in found if mark in name), None):
            return what.format(marked), todo
    return None


def _without(name: str, wanted: Collection[str]) -> tuple[str, str] | None:
    """The parts of a name that are too many, and the name of the model that is left without them."""
    parts = name.split(".")
    for length in range(1, min(4, len(parts))):
        for start in range(len(parts) - length):
            rest = [*parts[:start], *parts[start + length :]]
            for left in (rest, [part for part in rest if part not in _PARTS]):
                if (meant := ".".join(left)) in wanted:
                    return ".".join(parts[start : start + length]), meant
    return None


def _base_class(meant: str, rest: str, missing: Collection[str]) -> tuple[str, str]:
    begin = meant.removesuffix(rest)
    lost = sorted(name for name in missing if not name.startswith(begin))
    what = f"names of tensors lack '{begin}' ('{rest}' for '{meant}'): the base class was saved (AutoModel)"
    if lost:
        todo = "Save the whole model, of AutoModelForCausalLM: its output layer is not here."
        return f"{what}, without '{lost[0]}'", todo
    return what, "Load the folder by AutoModelForCausalLM.from_pretrained(...), and save it by save_pretrained(...)."
