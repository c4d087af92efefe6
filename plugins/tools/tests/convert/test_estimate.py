"""What `slime plan convert` says against what conversions read and write, and against the table in the docs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from _pytest.mark.structures import ParameterSet

from plugins.tools.tests.convert.test_dist import MOE
from plugins.tools.tests.convert.test_layout import RECIPES
from slime import files
from slime.__main__ import main
from slime.config.hf import QUANTIZATION
from slime.config.paths import resolve
from slime.errors import SlimeError
from slime.files import human_bytes
from slime.weights.hf_files import HfFiles
from slime_testing.models import write_checkpoint
from slime_tools.convert import estimate, fp8, job, layout
from slime_tools.convert.estimate import Estimate, minutes, model_of, tensors_of
from slime_tools.convert.schemes import Strategy

BLOCK = fp8.scheme_to_write(Strategy.block, powers_of_two=False)
DOCS = Path(__file__).parents[4] / "docs/checkpoints.md"


def described(folder: Path, to: Path) -> Path:
    """A folder with nothing but the other's config.json."""
    to.mkdir()
    (to / "config.json").write_text((folder / "config.json").read_text())
    return to


def data_bytes(folder: Path) -> int:
    """Of its tensors, without the headers of files."""
    files = HfFiles(folder)
    first = {name: min(each.start for each in files.tensors.values() if each.file == name) for name in names(files)}
    return sum((folder / name).stat().st_size - start for name, start in first.items())


def names(files: HfFiles) -> set[str]:
    return {each.file for each in files.tensors.values()}


def test_bytes_are_those_of_the_conversion(tmp_path: Path) -> None:
    """Of a folder with weights, and of its config.json alone."""
    source = tmp_path / "bf16"
    write_checkpoint(MOE, source, dtype=torch.bfloat16)
    counted = estimate.to_fp8(source, 1, BLOCK)
    job.run(fp8.to_fp8(source, tmp_path / "fp8", BLOCK), 1)
    assert (counted.reads, counted.writes) == (data_bytes(source), data_bytes(tmp_path / "fp8"))
    back = estimate.to_bf16(tmp_path / "fp8", 1)
    assert (back.reads, back.writes) == (counted.writes, counted.reads)
    for folder, in_fp8 in ((source, False), (tmp_path / "fp8", True)):
        real = tensors_of(folder).tensors
        found = tensors_of(described(folder, tmp_path / f"only-{folder.name}"), in_fp8=in_fp8).tensors
        hf, bridge = model_of(folder)
        for copy in bridge.weight_mapping(hf).copies:  # this checkpoint has none
            del found[copy]
        assert {name: each.shape for name, each in found.items()} == {name: each.shape for name, each in real.items()}
        other = {name for name, each in found.items() if each.dtype != real[name].dtype}
        assert all(name.endswith("e_score_correction_bias") for name in other), "published ones are fp32"


def test_fp8_that_config_json_does_not_mention_is_in_blocks(tmp_path: Path) -> None:
    source = tmp_path / "bf16"
    write_checkpoint(MOE, source, dtype=torch.bfloat16)
    plain = described(source, tmp_path / "plain")
    assert estimate.to_bf16(plain, 1).reads == estimate.to_fp8(plain, 1, BLOCK).writes
    with pytest.raises(SlimeError, match="this checkpoint is not FP8"):
        estimate.to_bf16(source, 1)
    config = json.loads((plain / "config.json").read_text()) | {QUANTIZATION: {"quant_method": "awq"}}
    (plain / "config.json").write_text(json.dumps(config))
    with pytest.raises(SlimeError, match="quant_method 'awq'"):
        estimate.to_bf16(plain, 1)


def test_layout_that_does_not_fit_is_refused() -> None:
    with pytest.raises(SlimeError, match="heads"):
        estimate.to_dist(
            resolve("pkg://slime_plugin_glm4/assets/GLM-4.7-Flash"), layout.parse(["tensor_model_parallel_size=3"]), 3
        )


ROW = re.compile(r"\| `slime convert (\S+) (\S+) \S+(?: --layout ([^`]*))?`.*\| (.+) \| (.+) \| (.+) \|")


def rows() -> Iterator[ParameterSet]:
    for found in filter(None, map(ROW.fullmatch, DOCS.read_text().splitlines())):
        is_large = found[2].startswith(("GLM-5.2", "DeepSeek-R1"))  # seconds each
        yield pytest.param(*found.groups(default=""), marks=[pytest.mark.slow] if is_large else [])


@pytest.mark.parametrize(("conversion", "source", "words", "moved", "process", "time"), list(rows()))
def test_table_in_the_docs(conversion: str, source: str, words: str, moved: str, process: str, time: str) -> None:
    asset = source.removesuffix("-FP8").removesuffix("-BF16")
    [folder] = [resolve(path) for path in RECIPES if path.endswith(f"/{asset}")]
    found: Estimate
    if conversion == "fp8-to-bf16":
        found = estimate.to_bf16(folder, 8)
    elif conversion == "bf16-to-fp8":
        found = estimate.to_fp8(folder, 8, BLOCK)
    else:
        found = estimate.to_dist(folder, layout.parse(words.split()), 1)
    assert moved == f"{human_bytes(found.reads)} + {human_bytes(found.writes)}"
    assert (process, time) == (human_bytes(found.process_bytes), minutes(found.seconds(2e9)))


def test_docs_have_the_conversions_of_all_recipes() -> None:
    assert len(list(rows())) >= 7


def test_command_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # as the command sets it
    monkeypatch.setattr(files, "free_bytes", lambda path: 2**35)
    words = ["plan", "convert", "bf16-to-fp8", "pkg://slime_plugin_glm4/assets/GLM-4.7-Flash", str(tmp_path / "out")]
    assert main([*words, "--processes", "3", "--disk-gb-s", "0.5"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "reads    58.2 GiB (as config.json tells: there are no weights)"
    assert lines[1].startswith("writes   30.3 GiB in 19111 tensors; the disk has 32.0 GiB free")
    assert lines[2] == "memory   972.0 MiB: 3 processes of 24.0 MiB and Python with its libraries, 300.0 MiB"
    assert lines[3].startswith("time     3 min at the rate of the disk: the disk's is taken as 0.5 GB/s")
    assert list(tmp_path.iterdir()) == []


def test_too_little_disk_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(files, "free_bytes", lambda path: 2**30)
    words = ["plan", "convert", "bf16-to-fp8", "pkg://slime_plugin_glm4/assets/GLM-4.7-Flash", str(tmp_path / "out")]
    assert main(words) == 2
    printed = capsys.readouterr()
    assert len(printed.out.splitlines()) == 4, "what it takes is told all the same"
    assert "the disk has no room: 30.3 GiB are needed, 1.0 GiB are free" in printed.err
