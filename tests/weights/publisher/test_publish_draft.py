"""The prediction layer reaches the model that drafts in a real engine, under the same proof as all other weights.

SGLang has no attention for drafting on a CPU ("EAGLE is not supported in attention backend torch_native"), so this
engine gets none and is never asked to generate; models, loaders, scheduler and the workers of both models are SGLang's.
"""

from dataclasses import dataclass, field

import pytest
import torch

from slime import plugins
from slime.config.hf import read_hf_config
from slime.config.paths import resolve
from slime.errors import SlimeError
from slime_plugin_mimo import hf
from slime_testing import models
from slime_testing.engines import hf_tensors, running_engine
from slime_testing.publishing import publish
from tests.transports import BUCKET, broadcast, joined

pytestmark = pytest.mark.slow

DRAFTING = {
    "speculative_algorithm": "NEXTN",
    "speculative_num_steps": 1,
    "speculative_eagle_topk": 1,
    "speculative_num_draft_tokens": 2,
}
NO_ATTENTION = """
import torch
from sglang.srt.plugins.hook_registry import HookRegistry, HookType

def install():
    backend = "sglang.srt.speculative.draft_utils.DraftBackendFactory._create_backend"
    HookRegistry.register(backend, lambda *args, **kwargs: None, HookType.REPLACE)
    torch.cuda.synchronize = torch.cuda.empty_cache = lambda *args: None
"""


@dataclass(frozen=True)
class Drafter:
    """A tiny model with a prediction layer, and the names of one of its tensors in the checkpoint and in the engine."""

    path: str
    tensor: str
    parameter: str
    experts: dict[str, int] = field(default_factory=dict)


TWICE = {"ep_num_redundant_experts": 8}
"""Every expert, in the layer that drafts too, where SGLang's loader would leave the second one as it was."""
DRAFTERS = [
    Drafter(
        "pkg://slime_plugin_glm4/assets/glm4-moe-lite-tiny",
        "model.layers.4.eh_proj.weight",
        "model.eh_proj.weight",
        TWICE,
    ),
    Drafter(
        "pkg://slime_plugin_mimo/assets/mimo-tiny", "model.mtp_layers.0.input_proj.weight", "model.input_proj.weight"
    ),
]


@pytest.fixture(scope="module", params=DRAFTERS, ids=["behind-the-last-layer", "beside-the-layers"])
def drafter(request):
    hf.register()
    return request.param


@pytest.fixture(scope="module")
def folder(drafter):
    return resolve(drafter.path)


@pytest.fixture(scope="module")
def tensors(folder):
    """By HF name, in the order of an export."""
    config = read_hf_config(str(folder))
    mapping = plugins.load().models.create(config["model_type"]).weight_mapping(config)
    model = dict(hf_tensors(models.random_model(config)))
    names = dict.fromkeys(name for entry in mapping.entries for name in entry.hf)
    assert mapping.draft_names <= names.keys()
    return {name: model[name] for name in names}


@pytest.fixture(scope="module")
def drafting(folder, drafter, tmp_path_factory):
    """An engine with a drafting model, started with SGLang's own kind of plugin."""
    plugin = tmp_path_factory.mktemp("plugin")
    (plugin / "no_attention.py").write_text(NO_ATTENTION)
    info = plugin / "no_attention-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: no-attention\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[sglang.srt.plugins]\nno_attention = no_attention:install\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(plugin))
        with running_engine(folder, plugin / "engine.log", **DRAFTING, **drafter.experts) as engine:
            yield engine.endpoint


@pytest.fixture(scope="module")
def over_memory(drafting):
    return lambda tensors, version: publish(iter(tensors.items()), [drafting], version, BUCKET)


@pytest.fixture(scope="module")
def over_broadcast(drafting):
    with joined("draft", drafting) as group:
        yield lambda tensors, version: broadcast(iter(tensors.items()), group, [drafting], version)


@pytest.mark.parametrize("way", ["over_memory", "over_broadcast"])
def test_both_models_are_proven(way, drafter, tensors, request):
    publish_by = request.getfixturevalue(way)
    assert publish_by(tensors, 1).num_tensors == len(tensors)
    with pytest.raises(SlimeError, match=rf"'{drafter.parameter}' \(\d+ of \d+ bytes; missing {drafter.tensor}\)"):
        publish_by({name: tensor for name, tensor in tensors.items() if name != drafter.tensor}, 2)
    surplus = drafter.tensor.replace("proj", "surplus")
    with pytest.raises(SlimeError, match=rf"{surplus}'.* (no place for 36 bytes|does not fit)"):
        publish_by(tensors | {surplus: torch.ones(9)}, 3)
    assert publish_by({name: tensor + 1 for name, tensor in tensors.items()}, 4).version == 4
