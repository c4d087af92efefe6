"""`slime convert`: HF folders from the checkpoints of a run, or from a config.json alone.

One process without a GPU does it: Megatron's checkpoints load in any layout, so also on a single rank.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slime.checkpoints import Checkpoint, CheckpointStore
from slime.config.schema import Device, Init, ModelConfig, SlimeConfig
from slime.errors import SlimeError
from slime.net import free_port

if TYPE_CHECKING:
    from slime.weights.mapping import WeightMapping

_HOST = "127.0.0.1"


def main(argv: Sequence[str]) -> None:
    """Run `slime convert <argv>`.

    Raises:
        SlimeError: the run, its checkpoint or the HF folder is missing or bad, or the destination exists.
    """
    parser = argparse.ArgumentParser(prog="slime convert", description="Write HF folders that transformers loads.")
    verbs = parser.add_subparsers(required=True)
    run = verbs.add_parser("run", help="the weights of a run's checkpoint, as an HF folder")
    run.add_argument("run", type=Path, help="run directory")
    run.add_argument("destination", type=Path, help="folder to write; must not exist")
    run.add_argument("--step", type=int, help="checkpoint to take (default: the newest)")
    run.set_defaults(convert=lambda args: convert_run(args.run, args.destination, args.step))
    random = verbs.add_parser("random", help="random weights for a config.json, as an HF folder")
    random.add_argument("source", help="HF folder with config.json and tokenizer, or pkg://package/folder")
    random.add_argument("destination", type=Path, help="folder to write; must not exist")
    random.add_argument("--seed", type=int, default=1234)
    random.set_defaults(convert=lambda args: convert_random(args.source, args.destination, args.seed))
    args = parser.parse_args(argv)
    warnings.filterwarnings("ignore", module=r"megatron\.")  # what it would rather have installed
    args.convert(args)
    print(f"wrote {args.destination}")


def convert_run(run: Path, destination: Path, step: int | None = None) -> None:
    """Write the weights of a run's checkpoint as an HF folder, in the run's precision."""
    cfg = _on_one_rank(_read_config(run / "config.yaml"))
    checkpoint = _checkpoint(run / "checkpoints", step)
    from slime.train.trainer import Trainer

    trainer = Trainer(cfg, 0, 1, _HOST, free_port(_HOST))
    trainer.load(checkpoint.path)
    _save(trainer.model.modules, trainer.mapping, trainer.hf, cfg.model.path, destination)


def convert_random(source: str, destination: Path, seed: int) -> None:
    """Write the random weights (fp32) that a run with `model.init=random` and this seed starts from on one rank."""
    from slime import plugins
    from slime.config.hf import read_hf_config
    from slime.train import megatron

    hf = read_hf_config(source)
    family = hf["model_type"]
    bridge = plugins.load().models.create(family)
    cfg = SlimeConfig(model=ModelConfig(name=family, family=family, path=source, init=Init.random))
    cfg.run.seed = seed
    megatron.initialize(cfg, 0, 1, _HOST, free_port(_HOST))
    _save(megatron.build(cfg, bridge, hf).modules, bridge.weight_mapping(hf), hf, source, destination)


def _save(
    modules: Sequence[Any], mapping: WeightMapping, hf: Mapping[str, Any], source: str, destination: Path
) -> None:
    from slime.config.paths import resolve
    from slime.weights.export import export_hf
    from slime.weights.save_hf import save_hf

    save_hf(export_hf(modules, mapping), resolve(source), destination, hf, copies=mapping.copies)


def _read_config(file: Path) -> SlimeConfig:
    from omegaconf import OmegaConf

    if not file.is_file():
        raise SlimeError("there is no config.yaml", where=str(file.parent), todo="Name a run directory.")
    cfg = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(SlimeConfig), OmegaConf.load(file)))
    assert isinstance(cfg, SlimeConfig)
    return cfg


def _on_one_rank(cfg: SlimeConfig) -> SlimeConfig:
    """The same model in the same precision, on the CPU and without parallelism."""
    sizes = ("parallel", "pipeline")
    kept = {key: value for key, value in cfg.train.megatron.items() if not any(word in key for word in sizes)}
    cfg.train.megatron = {"bf16": cfg.cluster.device is Device.cuda, **kept}
    cfg.cluster.device = Device.cpu
    return cfg


def _checkpoint(folder: Path, step: int | None) -> Checkpoint:
    store = CheckpointStore(folder, keep=1)
    if step is None:
        found = store.latest()
    else:
        found = next((checkpoint for checkpoint in store.all() if checkpoint.step == step), None)
    if found is None:
        steps = ", ".join(str(checkpoint.step) for checkpoint in store.all()) or "none"
        raise SlimeError(
            f"no checkpoint of step {step}" if step is not None else "there is no checkpoint",
            where=str(folder),
            todo=f"Checkpoints are there for the steps: {steps}.",
        )
    return found
