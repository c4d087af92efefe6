"""What a run needs beside a right config, and may be missing here: a plan does without it, a run does not."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import PurePosixPath

from slime.config.passthrough import made_for
from slime.config.paths import exists
from slime.config.schema import ClusterConfig, Device, ModelConfig, SlimeConfig
from slime.errors import SlimeError
from slime.rollout.kv_transfer import require_mooncake
from slime.topology.engines import works_in_pairs


def config_folder(model: ModelConfig) -> str:
    """The folder whose config.json describes the model: `model.path`, or the published one while that is missing."""
    return model.config if model.config is not None and not exists(model.path) else model.path


def needs(cfg: SlimeConfig) -> list[SlimeError]:
    """What must be fetched, installed or started, in the order in which it stands in the config."""
    return [*_model(cfg.model), *_rows(cfg), *_hosts(cfg.cluster), *_packages(cfg)]


def is_awaited(path: str | None, source: str | None) -> bool:
    """Whether a path is missing of which it is known where to get it."""
    return path is not None and source is not None and not exists(path)


def _model(model: ModelConfig) -> Iterator[SlimeError]:
    if is_awaited(model.path, model.source):
        fetch = f"hf download {model.source} --local-dir {model.path if model.path == model.source else model.source}"
        todo = f"Run '{fetch}', or name its folder with model.path=<folder>."
        if model.path != model.source:
            todo = f"Run '{fetch}' and cast its weights to bf16 into {model.path}, or set model.path=<folder>."
        yield SlimeError(f"there is no '{model.path}'", where="model.path", todo=todo)


def _rows(cfg: SlimeConfig) -> Iterator[SlimeError]:
    for key, section in (("data", cfg.data), ("eval", cfg.eval)):
        path, source = section.path, section.source
        if path is not None and is_awaited(path, source):
            folder = PurePosixPath(path).parent
            todo = f"Run 'hf download --repo-type dataset {source} --local-dir {folder}', or set {key}.path=<file>."
            yield SlimeError(f"there is no '{path}'", where=f"{key}.path", todo=todo)


def _hosts(cluster: ClusterConfig) -> Iterator[SlimeError]:
    named = cluster.hostfile or cluster.ray_address
    if cluster.device is Device.cuda and cluster.num_nodes > 1 and not named:
        todo = (
            "Set cluster.hostfile=<a file with an address a line>, or start Ray by the commands that 'slime plan' "
            "prints and set cluster.ray_address."
        )
        yield SlimeError(f"it is not known which {cluster.num_nodes} hosts", where="cluster.hostfile", todo=todo)


def _packages(cfg: SlimeConfig) -> Iterator[SlimeError]:
    """On this host; others are asked when their engines start."""
    for distribution, wanted in made_for().items():
        yield from _version(distribution, wanted)
    if works_in_pairs(cfg) and cfg.cluster.num_nodes == 1:
        try:
            require_mooncake(cfg.cluster.device)
        except SlimeError as need:
            yield need


def _version(distribution: str, wanted: str) -> Iterator[SlimeError]:
    try:
        found = version(distribution)
    except PackageNotFoundError:
        todo = "docs/install.md says how it comes with slime."
        yield SlimeError(f"{distribution} {wanted} is not installed", todo=todo)
        return
    if found.partition("+")[0] != wanted:  # without the builder's own mark, as in 1.0+cu130
        todo = f"Install it: pip install {distribution}=={wanted}."
        yield SlimeError(f"{distribution} {found} is installed, slime is made for {wanted}", todo=todo)
