"""FP8 checkpoints to BF16 and back: right by other readers, byte for byte; refused by name where they do not fit."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from slime.__main__ import main
from slime.checkpoints import CONVERTED
from slime.config.hf import QUANTIZATION
from slime.errors import SlimeError
from slime.weights.hf_files import HfFiles
from slime_megatron.fp8_block.config import PLAIN
from slime_testing.models import write_checkpoint
from slime_tools.convert import estimate, fp8, job
from slime_tools.convert.layout import parse
from slime_tools.convert.schemes import Strategy
from slime_tools.convert.tensors import TensorReader, as_bytes

# Sizes that are whole blocks or less than one: transformers knows no others.
HF = json.loads((Path(__file__).parents[4] / "plugins/models/glm4/tests/configs/moe.json").read_text())
HF |= {"hidden_size": 256, "moe_intermediate_size": 128, "intermediate_size": 384, "num_hidden_layers": 2}
EDGES = {"moe_intermediate_size": 72, "intermediate_size": 200, "hidden_size": 320}
FILE_BYTES = 800_000
"""Of the files that are written: many, so that scales and weights are apart."""
LINEAR = "model.layers.1.self_attn.q_proj"


@pytest.fixture
def tmp_path(memory_folder: Path) -> Path:
    return memory_folder


@pytest.fixture(scope="module")
def bf16(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bf16")
    write_checkpoint(HF, folder, dtype=torch.bfloat16, max_shard_size="500KB")
    (folder / "tokenizer.json").write_text("{}")
    return folder


def convert(made: job.Job) -> Path:
    job.run(replace(made, file_bytes=FILE_BYTES), 1)
    return made.destination


def quantized(source: Path, destination: Path, scales: str, **options: Any) -> Path:
    scheme = fp8.scheme_to_write(Strategy(scales), powers_of_two=options.pop("powers_of_two", False))
    return convert(fp8.to_fp8(source, destination, scheme, **options))


@pytest.fixture(scope="module")
def by_scales(bf16: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The FP8 checkpoint of each kind."""
    folder = tmp_path_factory.mktemp("fp8")
    return lambda scales: folder / scales if (folder / scales).exists() else quantized(bf16, folder / scales, scales)


def load(folder: Path) -> dict[str, torch.Tensor]:
    return {name: each for file in folder.glob("*.safetensors") for name, each in load_file(file).items()}


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.name != CONVERTED}


@pytest.mark.parametrize("scales", Strategy)
def test_fp8_to_bf16_to_fp8_gives_every_file_back(
    by_scales: Callable[[str], Path], tmp_path: Path, scales: Strategy
) -> None:
    published = by_scales(scales)
    back = convert(fp8.to_bf16(published, tmp_path / "bf16"))
    assert contents(convert(fp8.to_fp8_like(back, tmp_path / "like", published))) == contents(published)
    assert contents(quantized(back, tmp_path / "named", scales)) == contents(published)


@pytest.mark.parametrize("powers_of_two", [False, True])
def test_edges_and_powers_of_two(tmp_path: Path, powers_of_two: bool) -> None:
    write_checkpoint(HF | EDGES, tmp_path / "source", dtype=torch.bfloat16)
    published = quantized(tmp_path / "source", tmp_path / "fp8", "block", powers_of_two=powers_of_two)
    source, tensors = load(tmp_path / "source"), load(published)
    name = "model.layers.0.mlp.down_proj.weight"
    assert tensors[f"{name}_scale_inv"].shape == (3, 2)  # of [320, 200]
    mantissas = tensors[f"{name}_scale_inv"].frexp().mantissa
    assert bool((mantissas == 0.5).all()) == powers_of_two
    back = load(convert(fp8.to_bf16(published, tmp_path / "bf16")))
    assert back.keys() == source.keys()
    for name, tensor in source.items():
        # E4M3 has 4 significant bits: a value is off by a sixteenth, or, below its normal numbers, by 2^-10 of a scale
        # that is largest / 448, or up to twice that
        bound = tensor.abs().float() / 15 + tensor.abs().max() / 448 * 2**-9
        assert bool(((back[name].float() - tensor.float()).abs() <= bound).all()), name


def test_what_is_not_quantised_keeps_its_bytes_and_companions_come_along(
    bf16: Path, by_scales: Callable[[str], Path]
) -> None:
    source, tensors = load(bf16), load(by_scales("block"))
    kept = [name for name, tensor in tensors.items() if tensor.dtype is not torch.float8_e4m3fn and name in source]
    assert "model.layers.1.mlp.gate.e_score_correction_bias" in kept  # in fp32
    assert {"lm_head.weight", "model.embed_tokens.weight", "model.layers.1.mlp.gate.weight"} <= set(kept)
    for name in kept:
        assert tensors[name].dtype is source[name].dtype
        assert torch.equal(as_bytes(tensors[name]), as_bytes(source[name]))
    assert (by_scales("block") / "tokenizer.json").read_text() == "{}"


def test_scales_may_lie_in_another_file(by_scales: Callable[[str], Path]) -> None:
    """As the others of this file find them."""
    tensors = HfFiles(by_scales("block")).tensors
    apart = [name for name in tensors if (each := tensors.get(f"{name}_scale_inv")) and each.file != tensors[name].file]
    assert apart


def test_modules_that_are_named_stay_as_they_are(bf16: Path, tmp_path: Path) -> None:
    folder = quantized(bf16, tmp_path / "fp8", "block", ignored=["self_attn.o_proj", "model.layers.0.mlp.up_proj"])
    dtypes = {name: tensor.dtype for name, tensor in HfFiles(folder).tensors.items()}
    assert dtypes["model.layers.0.self_attn.o_proj.weight"] == "BF16"
    assert (dtypes["model.layers.0.mlp.up_proj.weight"], dtypes["model.layers.0.mlp.gate_proj.weight"]) == (
        "BF16",
        "F8_E4M3",
    )
    assert json.loads((folder / "config.json").read_text())[QUANTIZATION]["modules_to_not_convert"][-2:] == [
        "self_attn.o_proj",
        "model.layers.0.mlp.up_proj",
    ]


def test_transformers_reads_the_blocks_as_slime_does(by_scales: Callable[[str], Path], tmp_path: Path) -> None:
    """Its quantiser asks for accelerate before it loads a model; its arithmetic and its reading of names do not."""
    from transformers import FineGrainedFP8Config
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize
    from transformers.quantizers.quantizers_utils import should_convert_module

    published, back = load(by_scales("block")), load(convert(fp8.to_bf16(by_scales("block"), tmp_path / "bf16")))
    said = json.loads((by_scales("block") / "config.json").read_text())[QUANTIZATION]
    config = FineGrainedFP8Config(**said)
    assert tuple(config.weight_block_size) == (128, 128)
    theirs: Any = Fp8Dequantize(None)
    for name, tensor in published.items():
        module, _, kind = name.rpartition(".")
        if kind == "weight" and tensor.dim() == 2 and "embed_tokens" not in name:
            is_fp8 = tensor.dtype is torch.float8_e4m3fn
            assert should_convert_module(module, config.modules_to_not_convert) == is_fp8, name
            if is_fp8:
                whole = theirs._dequantize_one(tensor, published[f"{name}_scale_inv"], torch.bfloat16)
                assert torch.equal(whole, back[name]), name


@pytest.mark.parametrize("scales", ["channel", "tensor"])
def test_compressed_tensors_reads_the_others_as_slime_does(
    by_scales: Callable[[str], Path], tmp_path: Path, scales: str
) -> None:
    quantization = pytest.importorskip("compressed_tensors.quantization")
    forward = pytest.importorskip("compressed_tensors.quantization.lifecycle.forward")
    published, back = load(by_scales(scales)), load(convert(fp8.to_bf16(by_scales(scales), tmp_path / "bf16")))
    said = json.loads((by_scales(scales) / "config.json").read_text())[QUANTIZATION]
    config = quantization.QuantizationConfig.model_validate(said)
    group = config.config_groups["group_0"]
    assert (group.weights.strategy, group.input_activations.dynamic) == (scales, True)
    names = [name for name, tensor in published.items() if tensor.dtype is torch.float8_e4m3fn]
    assert len(names) > 20
    assert not {name.removesuffix(".weight") for name in names} & set(config.ignore)
    assert {"lm_head", "model.layers.1.mlp.gate"} <= set(config.ignore)
    for name in names:
        whole = forward.dequantize(published[name], published[f"{name}_scale"], args=group.weights)
        assert torch.equal(whole.to(torch.bfloat16), back[name]), name


def edited(folder: Path, change: Callable[[dict[str, Any], dict[str, torch.Tensor]], None], copy: Path) -> Path:
    """A copy of an FP8 checkpoint in one file, changed."""
    tensors, config = load(folder), json.loads((folder / "config.json").read_text())
    change(config, tensors)
    copy.mkdir()
    (copy / "config.json").write_text(json.dumps(config))
    save_file(tensors, copy / "model.safetensors")
    return copy


WEIGHT, SCALES = f"{LINEAR}.weight", f"{LINEAR}.weight_scale_inv"
FAULTS: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "no config": (
        lambda config, _: config.pop(QUANTIZATION),
        f"{QUANTIZATION}: is missing: this checkpoint is not FP8",
    ),
    "method": (lambda config, _: config[QUANTIZATION].update(quant_method="awq"), "has quant_method 'awq'"),
    "blocks": (lambda config, _: config[QUANTIZATION].update(weight_block_size=[64, 64]), r"blocks of \[64, 64\]"),
    "no scales": (lambda _, tensors: tensors.pop(SCALES), f"'{WEIGHT}' has no scales '{SCALES}'"),
    "no weight": (lambda _, tensors: tensors.pop(WEIGHT), f"'{SCALES}' belong to no FP8 weight"),
    "per channel": (
        lambda _, tensors: tensors.update({SCALES: torch.ones(len(tensors[WEIGHT]), 1)}),
        rf"'{SCALES}' has shape \[\d+, 1\], as one scale a channel has; blocks of 128 x 128 need",
    ),
    "other blocks": (
        lambda _, tensors: tensors.update({SCALES: torch.ones(4, 4)}),
        rf"'{SCALES}' has shape \[4, 4\]; blocks of 128 x 128 need",
    ),
    "e5m2": (
        lambda _, tensors: tensors.update({WEIGHT: tensors[WEIGHT].float().to(torch.float8_e5m2)}),
        f"'{WEIGHT}' is F8_E5M2",
    ),
    "not FP8": (
        lambda _, tensors: tensors.update(
            {name: tensor.bfloat16() for name, tensor in tensors.items() if tensor.dtype is torch.float8_e4m3fn}
        ),
        "no tensor is F8_E4M3, though config.json says so",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_bad_checkpoint_is_refused_by_name_before_anything_is_written(
    by_scales: Callable[[str], Path], tmp_path: Path, fault: str
) -> None:
    change, message = FAULTS[fault]
    source = edited(by_scales("block"), change, tmp_path / "source")
    with pytest.raises(SlimeError, match=message):
        fp8.to_bf16(source, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


GROUP = "config_groups"
COMPRESSED_FAULTS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "bits": (lambda said: said[GROUP]["group_0"]["weights"].update(num_bits=4), "weights of 4 bits"),
    "integers": (lambda said: said[GROUP]["group_0"]["weights"].update(type="int"), "type 'int': not FP8"),
    "groups": (lambda said: said[GROUP]["group_0"]["weights"].update(strategy="group"), "has the strategies group"),
    "none": (lambda said: said.update({GROUP: {}}), "has the strategies of no group"),
    "block": (lambda said: said[GROUP]["group_0"]["weights"].update(strategy="block"), "blocks of None"),
}


@pytest.mark.parametrize("fault", COMPRESSED_FAULTS)
def test_other_compressed_tensors_are_refused(by_scales: Callable[[str], Path], tmp_path: Path, fault: str) -> None:
    change, message = COMPRESSED_FAULTS[fault]
    source = edited(by_scales("channel"), lambda config, _: change(config[QUANTIZATION]), tmp_path / "source")
    with pytest.raises(SlimeError, match=message):
        fp8.to_bf16(source, tmp_path / "out")


def test_scales_in_bf16_and_blocks_of_compressed_tensors_are_read(
    by_scales: Callable[[str], Path], tmp_path: Path
) -> None:
    def change(config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        weights = {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 128]}
        config[QUANTIZATION] = {"quant_method": "compressed-tensors", GROUP: {"group_0": {"weights": weights}}}
        for name in [name for name in tensors if name.endswith("_scale_inv")]:
            tensors[name.removesuffix("_inv")] = tensors.pop(name).bfloat16()
        tensors[f"{LINEAR}.input_scale"] = torch.ones(1)

    published = edited(by_scales("block"), change, tmp_path / "source")
    back, tensors = load(convert(fp8.to_bf16(published, tmp_path / "out"))), load(published)
    assert not [name for name in back if name.endswith("scale")]
    # where each scale stands is shown by the other tests: here that it is taken in bf16, a product of 4 and 8 bits
    value, scale = tensors[WEIGHT][0, 0].double(), tensors[f"{WEIGHT}_scale"][0, 0].double()
    assert back[WEIGHT][0, 0] == (value * scale).bfloat16()


def test_fp8_of_fp8_is_refused(by_scales: Callable[[str], Path], tmp_path: Path) -> None:
    with pytest.raises(SlimeError, match="is quantised already"):
        quantized(by_scales("block"), tmp_path / "out", "block")


@pytest.mark.parametrize("which", ["missing", "surplus", "shape"])
def test_other_model_is_refused_by_name(
    bf16: Path, by_scales: Callable[[str], Path], tmp_path: Path, which: str
) -> None:
    def change(_: object, tensors: dict[str, torch.Tensor]) -> None:
        if which == "surplus":
            tensors["surplus.weight"] = torch.ones(2)
        elif which == "missing":
            del tensors["model.norm.weight"]
        else:
            tensors["model.norm.weight"] = torch.ones(5)

    like = edited(by_scales("block"), change, tmp_path / "like")
    name = "surplus.weight" if which == "surplus" else "model.norm.weight"
    with pytest.raises(SlimeError, match=rf"'{name}' (is in .* and not here|has shape \[256\], in .*like \[5\])"):
        fp8.to_fp8_like(bf16, tmp_path / "out", like)


def test_experts_in_one_tensor_are_refused(bf16: Path, tmp_path: Path) -> None:
    shutil.copytree(bf16, tmp_path / "source")
    name = "model.layers.1.mlp.experts.gate_up_proj"
    save_file({name: torch.ones(4, 8, 8)}, tmp_path / "source/extra.safetensors")
    index = tmp_path / "source/model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"][name] = "extra.safetensors"
    index.write_text(json.dumps(content))
    with pytest.raises(SlimeError, match=rf"'{name}' has shape \[4, 8, 8\]: experts in one tensor"):
        quantized(tmp_path / "source", tmp_path / "out", "block")


def test_powers_of_two_belong_to_blocks() -> None:
    with pytest.raises(SlimeError, match="--ue8m0: belongs to blocks"):
        fp8.scheme_to_write(Strategy.channel, powers_of_two=True)


def test_live_engines_take_what_is_written(by_scales: Callable[[str], Path]) -> None:
    from slime_megatron.fp8_block.config import fp8_format

    said = json.loads((by_scales("block") / "config.json").read_text())[QUANTIZATION]
    assert tuple(fp8_format(said, "config.json").ignored) == PLAIN
    files = HfFiles(by_scales("block"))
    reader = TensorReader(files)
    assert reader.rows(SCALES).dtype is torch.float32


def test_fp8_folder_given_to_hf_to_dist_is_sent_to_the_conversion_that_makes_bf16(
    by_scales: Callable[[str], Path], tmp_path: Path
) -> None:
    source = shutil.copytree(by_scales("block"), tmp_path / "released")
    with pytest.raises(SlimeError, match="the weights are FP8") as refusal:
        estimate.to_dist(source, parse([]), 1)
    wide = {name for name in load(source) if not name.endswith("_scale_inv")}
    command = re.search("'slime (convert .*?)'", refusal.value.todo)
    assert command
    main(command[1].split())
    assert estimate.to_dist(tmp_path / "released-BF16", parse([]), 1).num_tensors == len(wide)
