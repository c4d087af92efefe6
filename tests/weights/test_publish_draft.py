"""The prediction layer reaches the model that drafts in a real engine, under the same proof as all other weights.

SGLang has no attention for drafting on a CPU ("EAGLE is not supported in attention backend torch_native"), so this
engine gets none and is never asked to generate; models, loaders, scheduler and the workers of both models are SGLang's.
"""

import json
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch

from slime import plugins
from slime.config.paths import resolve
from slime.errors import SlimeError
from slime.net import free_port
from slime.testing import models
from slime.testing.engines import LOCALHOST, hf_tensors, running_engine
from slime.weights.engine_link import EngineLink
from slime.weights.publish import publish, publish_over
from slime.weights.transport import Broadcast, join_engines, results

pytestmark = pytest.mark.slow

BUCKET = 1 << 20
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


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The tiny mixture of experts with a prediction layer."""
    folder = tmp_path_factory.mktemp("model")
    source = resolve("pkg://slime_plugin_glm4/assets/glm4-moe-tiny")
    for file in source.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    hf = json.loads((folder / "config.json").read_text()) | {"num_nextn_predict_layers": 1}
    (folder / "config.json").write_text(json.dumps(hf))
    return folder


@pytest.fixture(scope="module")
def tensors(folder):
    """By HF name, in the order of an export."""
    hf = json.loads((folder / "config.json").read_text())
    mapping = plugins.load().models.create(hf["model_type"]).weight_mapping(hf)
    model = dict(hf_tensors(models.random_model(hf)))
    names = dict.fromkeys(name for entry in mapping.entries for name in entry.hf)
    assert mapping.mtp_names <= names.keys()
    return {name: model[name] for name in names}


@pytest.fixture(scope="module")
def drafting_url(folder, tmp_path_factory):
    """An engine with a drafting model, started with SGLang's own kind of plugin."""
    plugin = tmp_path_factory.mktemp("plugin")
    (plugin / "no_attention.py").write_text(NO_ATTENTION)
    info = plugin / "no_attention-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: no-attention\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[sglang.srt.plugins]\nno_attention = no_attention:install\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(plugin))
        with running_engine(folder, plugin / "engine.log", **DRAFTING) as engine:
            yield engine.url


@pytest.fixture(scope="module")
def over_memory(drafting_url):
    return lambda tensors, version: publish(iter(tensors.items()), [drafting_url], version, BUCKET)


@pytest.fixture(scope="module")
def over_broadcast(drafting_url):
    link = EngineLink(drafting_url, 0, 60)
    with ThreadPoolExecutor(1) as pool:
        results([pool.submit(link.connect)])
        group = join_engines([link], pool, "draft", (LOCALHOST, free_port(LOCALHOST)), "gloo")
        yield partial(broadcast, drafting_url, pool, group)
        torch.distributed.destroy_process_group(group)


def broadcast(url, pool, group, tensors, version):
    link = EngineLink(url, version, 60)
    transport = Broadcast([link], pool, ("draft", group), torch.device("cpu"), LOCALHOST)
    return publish_over(transport, pool, iter(tensors.items()), version, BUCKET)


@pytest.mark.parametrize("way", ["over_memory", "over_broadcast"])
def test_both_models_are_proven(way, tensors, request):
    publish_by = request.getfixturevalue(way)
    assert publish_by(tensors, 1).num_tensors == len(tensors)
    victim = "model.layers.4.eh_proj.weight"
    with pytest.raises(SlimeError, match=rf"'model\.eh_proj\.weight' \(\d+ of \d+ bytes; missing {victim}\)"):
        publish_by({name: tensor for name, tensor in tensors.items() if name != victim}, 2)
    with pytest.raises(SlimeError, match=r"layers\.4\.shared_head\.head\.weight'.* no place for 36 bytes"):
        publish_by(tensors | {"model.layers.4.shared_head.head.weight": torch.ones(9)}, 3)
    assert publish_by({name: tensor + 1 for name, tensor in tensors.items()}, 4).version == 4
