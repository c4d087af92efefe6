"""`slime convert`: checkpoints into other formats, without a GPU."""

from __future__ import annotations

import argparse
import os
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slime import files
from slime.arguments import ArgumentParser
from slime.checkpoints import Checkpoint, CheckpointStore
from slime.config.hf import read_hf_config
from slime.config.keys import default_config
from slime.config.paths import SCHEME, resolve
from slime.config.schema import ClusterConfig, Device, Init, ModelConfig, SlimeConfig, TrainConfig
from slime.errors import SlimeError
from slime.imports import absent, importing
from slime.printable import printable
from slime.run_config import read_config
from slime.weights.hf_files import HfFiles
from slime.weights.other_forms import MEGATRONS

if TYPE_CHECKING:
    from slime_tools.convert.estimate import Estimate
    from slime_tools.convert.job import Job
    from slime_tools.convert.schemes import Scheme


def add_arguments(parser: ArgumentParser) -> None:
    parser.description = "Turn checkpoints into other formats."
    verbs = parser.add_subparsers(required=True, metavar="conversion")
    add_planned(verbs)
    random = verbs.add_parser("random", help="random weights for a config.json, as an HF folder")
    random.add_argument("source", help="HF folder with config.json and tokenizer, or pkg://package/folder")
    random.add_argument("destination", type=Path, help="folder to write; must not exist")
    random.add_argument("--seed", type=int, default=1234)
    random.set_defaults(convert=lambda args: convert_random(args.source, args.destination, args.seed))
    check = verbs.add_parser("check", help="compare the files of a converted folder with its manifest")
    check.add_argument("folder", type=Path)
    _add_processes(check)
    check.set_defaults(convert=_check)


def add_planned(verbs: Any) -> None:
    """The conversions that can be planned."""
    wide = verbs.add_parser("fp8-to-bf16", help="an FP8 checkpoint (blocks, channels, tensors) in BF16")
    _add_folders(wide)
    wide.set_defaults(convert=_convert, conversion="fp8-to-bf16")
    narrow = verbs.add_parser("bf16-to-fp8", help="a checkpoint in FP8 (E4M3)")
    _add_folders(narrow)
    narrow.add_argument(
        "--scales",
        choices=("block", "channel", "tensor"),
        help="what shares a scale (default: block of 128 x 128, the only one that live engines take new weights in)",
    )
    narrow.add_argument("--ue8m0", action="store_true", help="round the scales of blocks up to powers of two")
    narrow.add_argument("--ignore", nargs="+", default=[], help="modules that stay as they are, such as 'mlp.gate'")
    narrow.add_argument("--like", type=Path, help="FP8 folder of the same model: quantise what it does, as it does")
    narrow.set_defaults(convert=_convert, conversion="bf16-to-fp8")
    to = verbs.add_parser("hf-to-dist", help="an HF folder as a Megatron-core checkpoint (torch_dist)")
    _add_folders(to, "HF folder with safetensors in BF16 or fp32")
    to.add_argument(
        "--layout", nargs="+", default=[], help="sizes such as tensor_model_parallel_size=8 (default: one rank)"
    )
    to.set_defaults(convert=_convert, conversion="hf-to-dist")
    back = verbs.add_parser("dist-to-hf", help="a run's checkpoint, or what hf-to-dist wrote, as an HF folder")
    _add_folders(back, "run directory, or folder that hf-to-dist wrote", Path)
    back.add_argument("--step", type=int, help="of a run: checkpoint to take (default: the newest)")
    back.set_defaults(convert=_convert, conversion="dist-to-hf")


def run(args: argparse.Namespace) -> None:
    """Raises SlimeError: the run, its checkpoint or the HF folder is missing or bad, or the destination exists."""
    warnings.filterwarnings("ignore", module=r"megatron\.")  # what it would rather have installed
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # Megatron-core would put on a GPU what has no place there
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")  # nothing is compiled: else torch's compiler is imported for it
    if getattr(args, "plan", False):
        _plan(args)
        return
    if getattr(args, "hostfile", None):
        _convert_on_hosts(args, args.words)
    else:
        args.convert(args)
    if hasattr(args, "destination") and not int(os.environ.get("RANK", "0")):
        print(printable(f"wrote {args.destination}"))


def _add_folders(parser: ArgumentParser, source: str = "HF folder with safetensors", kind: Any = None) -> None:
    """The arguments of every conversion: its folders, files, processes and hosts, and its plan alone."""
    parser.add_argument("source", type=kind or _folder, help=source)
    parser.add_argument("destination", type=Path, help="folder to write; must not exist")
    parser.add_argument("--file-gb", type=float, default=5.0, help="largest file (default: %(default)s)")
    _add_processes(parser)
    what = "convert on the hosts of this file (an address a line), which see all folders by the same paths"
    parser.add_argument("--hostfile", help=what)
    what = "write nothing: say what it would read, write, take of memory and of time (also: slime plan convert ...)"
    parser.add_argument("--plan", action="store_true", help=what)
    rate = "of reading and writing together, for --plan (default: %(default)s)"
    parser.add_argument("--disk-gb-s", type=float, default=2.0, help=rate)


def _folder(path: str) -> Path:
    """A path as it is typed, or the folder of a package."""
    return resolve(path) if path.startswith(SCHEME) else Path(path)


def _add_processes(parser: ArgumentParser) -> None:
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--processes", type=int, default=cores, help="default: one a core (here %(default)s)")


def _convert(args: argparse.Namespace) -> None:
    file_bytes = int(args.file_gb * 10**9)
    if args.conversion == "hf-to-dist":
        with importing(), absent("wandb"):  # which Megatron-core's inference takes where it is
            from slime_tools.convert import layout, to_dist

        to_dist.convert(args.source, args.destination, layout.parse(args.layout), args.processes, file_bytes)
    else:
        from slime_tools.convert import job

        job.run(replace(_job(args), file_bytes=file_bytes), args.processes)


def _job(args: argparse.Namespace) -> Job:
    """The conversion that ends in an HF folder."""
    if args.conversion == "dist-to-hf":
        return from_dist(args.source, args.destination, args.step)
    from slime_tools.convert import fp8

    if args.conversion == "fp8-to-bf16":
        return fp8.to_bf16(args.source, args.destination)
    if args.like is None:
        return fp8.to_fp8(args.source, args.destination, _scheme(args), args.ignore)
    if args.scales or args.ue8m0 or args.ignore:
        todo = "Leave out --scales, --ue8m0 and --ignore."
        raise SlimeError("says what is quantised, and how", where="--like", todo=todo)
    return fp8.to_fp8_like(args.source, args.destination, args.like)


def _scheme(args: argparse.Namespace) -> Scheme:
    from slime_tools.convert import fp8
    from slime_tools.convert.schemes import Strategy

    return fp8.scheme_to_write(Strategy(args.scales or "block"), powers_of_two=args.ue8m0)


def _estimate(args: argparse.Namespace) -> Estimate:
    from slime_tools.convert import estimate, layout

    if args.conversion == "fp8-to-bf16":
        return estimate.to_bf16(args.source, args.processes)
    if args.conversion == "hf-to-dist":
        return estimate.to_dist(args.source, layout.parse(args.layout), args.processes)
    if args.conversion == "dist-to-hf":
        return estimate.from_dist(_job(args).tensors, args.processes)
    if args.like is not None:
        return estimate.by_pieces(args.conversion, HfFiles(args.source), _job(args).tensors, args.processes)
    return estimate.to_fp8(args.source, args.processes, _scheme(args), args.ignore)


def _convert_on_hosts(args: argparse.Namespace, argv: Sequence[str]) -> None:
    """What is wrong with source or destination is told before another host is asked."""
    from slime_tools.convert.hosts import run_on_hosts
    from slime_tools.convert.staging import require_absent

    _estimate(args)
    require_absent(args.destination)
    at = next(number for number, word in enumerate(argv) if word.partition("=")[0] == "--hostfile")
    words = [*argv[:at], *argv[at + (1 if "=" in argv[at] else 2) :]]
    run_on_hosts(args.hostfile, words, args.processes)


def _plan(args: argparse.Namespace) -> None:
    from slime_tools.convert.estimate import text
    from slime_tools.convert.job import check_room
    from slime_tools.convert.staging import Staging

    estimate = _estimate(args)
    print(printable(text(estimate, args.disk_gb_s * 1e9, files.free_bytes(args.destination))), flush=True)
    check_room(args.destination, estimate.writes - Staging(args.destination, {}).written_bytes())


def _check(args: argparse.Namespace) -> None:
    from slime_tools.convert.staging import check

    count = check(args.folder, args.processes)
    print(printable(f"{args.folder}: {count} files are as they were written"))


def from_dist(source: Path, destination: Path, step: int | None = None) -> Job:
    """The job that writes the weights of a run's checkpoint, or of what `hf-to-dist` wrote, as an HF folder.

    Raises:
        SlimeError: there is no such checkpoint, or its config.json is of another model.
    """
    with importing(), absent("wandb"):
        from slime_tools.convert import from_dist
        from slime_tools.convert.staging import stats

    if (source / "config.yaml").is_file():
        cfg, folder = _read_config(source / "config.yaml"), _checkpoint(source / "checkpoints", step).path
        _put_on_one_rank(cfg.train, cfg.cluster)
    elif not (source / MEGATRONS).is_file():
        what = f"neither a run (config.yaml) nor a checkpoint of Megatron-core ({MEGATRONS})"
        raise SlimeError(what, where=str(source), todo="Name a run directory, or a folder that hf-to-dist wrote.")
    else:
        if step is not None:
            raise SlimeError("belongs to a run", where="--step", todo=f"{source} has no config.yaml: leave it out.")
        family = read_hf_config(str(source))["model_type"]
        cfg, folder = SlimeConfig(model=ModelConfig(name=family, family=family, path=str(source))), source
    identity = {"conversion": "dist-to-hf", **stats(folder, [path.name for path in folder.iterdir()])}
    return from_dist.to_hf(folder, destination, cfg.model, cfg.train, cfg.cluster, identity)


def convert_random(source: str, destination: Path, seed: int) -> None:
    """Write the random weights (fp32) that a run with `model.init=random` and this seed starts from on one rank."""
    from slime import plugins
    from slime_megatron.train import megatron
    from slime_megatron.train.weights.export import export_hf
    from slime_megatron.train.weights.save_hf import save_hf

    hf = read_hf_config(source)
    family = hf["model_type"]
    bridge = plugins.load().models.create(family)
    cfg = SlimeConfig(model=ModelConfig(name=family, family=family, path=source, init=Init.random))
    cfg.run.seed = seed
    megatron.initialize_alone(cfg.cluster, cfg.train.megatron, seed)
    modules, mapping = megatron.build(cfg, bridge, hf).modules, bridge.weight_mapping(hf)
    save_hf(export_hf(modules, mapping), resolve(source), destination, hf, copies=mapping.copies)


def _read_config(file: Path) -> SlimeConfig:
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    saved = read_config(file)
    try:
        cfg = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(default_config()), saved))
    except OmegaConfBaseException as error:
        what = f"this is not the config of a run of this slime ({str(error).splitlines()[0]})"
        raise SlimeError(
            what, where=str(file), todo="Bring the file back, or convert by the slime that wrote it."
        ) from error
    assert isinstance(cfg, SlimeConfig)
    return cfg


def _put_on_one_rank(train: TrainConfig, cluster: ClusterConfig) -> None:
    """Have the same model in the same precision, on the CPU and without parallelism."""
    sizes = ("parallel", "pipeline")
    kept = {key: value for key, value in train.megatron.items() if not any(word in key for word in sizes)}
    train.megatron = {"bf16": cluster.on_gpus, **kept}
    cluster.device = Device.cpu


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
