"""Whether there is a teacher where an objective asks for one, and whether the trainers can hold it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from slime import plugins
from slime.config.hf import config_folder, read_hf_config, scores
from slime.config.paths import resolve
from slime.config.schema import AlgoConfig, ModelConfig, RolloutConfig
from slime.errors import SlimeError, did_you_mean
from slime.models.bridge import HfConfig, ModelBridge
from slime.weights.elsewhere import is_megatrons

KEY, GROUP = "algo.teacher.path", "algo.options.teacher_engines"
TOKENIZER = "tokenizer.json"
NO_MATTER = ("init_method_std", "max_sequence_length")
"""Keywords of a model that its function, once it is trained, does not depend on."""
SAME = "Name a teacher of the same architecture and vocabulary."


def teacher_problems(trained: ModelConfig, algo: AlgoConfig) -> Iterator[SlimeError]:
    """Why the trainers cannot hold the teacher, if the model can be read. What is in a Megatron-core checkpoint is
    found when it is loaded: nothing in it can be read without torch."""
    path = algo.teacher.path
    if path is None:
        todo = f"Set {KEY}=<folder>, an HF folder or a checkpoint; a run's export is one."
        yield SlimeError(f"algo={algo.name} learns from a teacher, and none is named", where=KEY, todo=todo)
        return
    try:
        folder = resolve(path)
        if not is_megatrons(folder) and (model := _model(trained)):
            yield from _of_folder(folder, trained, *model)
    except SlimeError as problem:
        yield problem.under(KEY)


def top_problems(model: ModelConfig, k: int) -> Iterator[SlimeError]:
    """Why there are no `k` most probable tokens: the model, and so the teacher, has not as many."""
    with suppress(SlimeError):
        size = read_hf_config(config_folder(model), model.num_layers)["vocab_size"]
        if k > size:
            what, todo = f"the vocabulary has {size} tokens, not {k}", f"Set it to {size} or less; 16 to 64 are usual."
            yield SlimeError(what, where="algo.options.teacher_top_k", todo=todo)


def group_problems(trained: ModelConfig, rollout: RolloutConfig, group: str) -> Iterator[SlimeError]:
    """Why an engine group cannot be the teacher: it is not there, writes nothing, or has other tokens. A folder that
    cannot be read is found by others."""
    frozen = {name: each.model for name, each in rollout.engines.items() if each.model is not None}
    if group not in frozen:
        todo = did_you_mean(group, frozen, f"{GROUP}=") if frozen else f"Set rollout.engines.{group}.model=<HF folder>."
        yield SlimeError(f"no engine group '{group}' has a model of its own", where=GROUP, todo=todo)
        return
    where = f"rollout.engines.{group}.model"
    with suppress(SlimeError):
        folder, model = resolve(frozen[group]), resolve(trained.tokenizer or config_folder(trained))
        if scores(read_hf_config(str(folder))):
            yield SlimeError("is a reward model, which has no log-probs", where=where, todo="Name a model that writes.")
        elif not has_same_tokens(folder / TOKENIZER, model / TOKENIZER):
            todo = "Name a teacher with the model's vocabulary."
            yield SlimeError("its tokenizer has other tokens than the model's", where=where, todo=todo)


def _model(model: ModelConfig) -> tuple[ModelBridge, HfConfig] | None:
    """None: others say what is wrong with it."""
    try:
        return plugins.load().models.create(model.family), read_hf_config(config_folder(model), model.num_layers)
    except SlimeError:
        return None


def _of_folder(folder: Path, model: ModelConfig, bridge: ModelBridge, hf: HfConfig) -> Iterator[SlimeError]:
    own = read_hf_config(str(folder), model.num_layers)
    where = f"{KEY}={folder}"
    if not any(folder.glob("*.safetensors")):
        yield SlimeError("there are no *.safetensors files", where=where, todo="Name a folder with weights.")
    elif own["model_type"] != hf["model_type"]:
        what = f"is of family '{own['model_type']}', the model of '{hf['model_type']}'"
        yield SlimeError(what, where=where, todo=SAME)
    elif other := _difference(_keywords(bridge, own), _keywords(bridge, hf)):
        yield SlimeError(other, where=where, todo=SAME)
    elif not has_same_tokens(folder / TOKENIZER, resolve(model.tokenizer or config_folder(model)) / TOKENIZER):
        yield SlimeError("its tokenizer has other tokens than the model's", where=where, todo=SAME)


def _keywords(bridge: ModelBridge, hf: HfConfig) -> dict[str, Any]:
    of_model = {**bridge.transformer_config(hf), **bridge.model_kwargs(hf), "vocab_size": hf["vocab_size"]}
    return {name: value for name, value in of_model.items() if name not in NO_MATTER}


def _difference(teacher: Mapping[str, Any], model: Mapping[str, Any]) -> str:
    """The first keyword that differs, in words."""
    for name in [*model, *teacher]:
        values = (teacher.get(name), model.get(name))
        if values[0] != values[1]:
            return f"its {name} is {values[0]!r:.60}, the model's {values[1]!r:.60}"
    return ""


def has_same_tokens(teacher: Path, model: Path) -> bool:
    """Whether two tokenizers give each id to the same token; True where one of them is in no such file."""
    if not (teacher.is_file() and model.is_file()):
        return True
    return teacher.read_bytes() == model.read_bytes() or _tokens(teacher) == _tokens(model)


def last_token(file: Path) -> int:
    """The largest id of a tokenizer; 0 where there is no such file."""
    return max(_tokens(file)) if file.is_file() else 0


def _tokens(file: Path) -> dict[int, str]:
    """Token by id: a vocabulary is a dictionary of ids, or a list of tokens with their scores."""
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
        listed = document["model"]["vocab"]
        of_model = listed if isinstance(listed, dict) else {token: id for id, (token, _) in enumerate(listed)}
        added = {each["content"]: each["id"] for each in document["added_tokens"]}
        return {id: token for token, id in {**of_model, **added}.items()}
    except (ValueError, KeyError, TypeError) as error:
        raise SlimeError(f"no tokenizer ({error!r:.80})", where=str(file), todo="Fetch the file again.") from error
