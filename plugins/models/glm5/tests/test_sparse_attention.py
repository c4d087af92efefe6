"""What the contract does not ask: both rotary orders of the indexer, recomputation, checkpoints, a trained indexer.

The prediction layer learns in all of these steps.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from slime.types import TrainSample
from slime_testing import models
from slime_testing.prediction import Prediction
from slime_testing.ranks import Rank, run_ranks
from slime_testing.recorded import recorded_samples
from slime_testing.training import GRADIENT_TOLERANCE, NUM_SAMPLES, TOLERANCES, compare, train_layouts

HF = json.loads((Path(__file__).parent / "configs/dsa.json").read_text())
FAMILY = HF["model_type"]
TP, PP, CP, EP = (f"{kind}_parallel_size" for kind in ("tensor_model", "pipeline_model", "context", "expert_model"))
RECOMPUTE = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
TRAINED = {"dsa_indexer_loss_coeff": 0.5}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dsa")
    models.write_checkpoint(HF, folder)
    return folder


def interleaved(tensor: Tensor) -> Tensor:
    """The same rotated pairs (i, i + r/2) of every head's first r rows, as pairs (2i, 2i + 1)."""
    size, half = HF["index_head_dim"], HF["qk_rope_head_dim"] // 2
    heads = tensor.view(-1, size, *tensor.shape[1:])
    pairs = torch.stack([heads[:, :half], heads[:, half : 2 * half]], dim=2).flatten(1, 2)
    return torch.cat([pairs, heads[:, 2 * half :]], dim=1).reshape(tensor.shape)


def test_interleaved_rotary_of_the_indexer(checkpoint: Path, tmp_path: Path) -> None:
    """transformers 5.12 rotates halves whatever `indexer_rope_interleave` says, so its model gets the rows in that
    order, and ours the same rows in the order that the field announces."""
    folder = tmp_path / "interleaved"
    shutil.copytree(checkpoint, folder)
    tensors = load_file(folder / "model.safetensors")
    rotated = [name for name in tensors if ".indexer." in name and "weights_proj" not in name]
    assert rotated
    save_file(tensors | {name: interleaved(tensors[name]) for name in rotated}, folder / "model.safetensors")
    hf = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(hf | {"indexer_rope_interleave": True}))
    [ours] = run_ranks(models.logits, 1, FAMILY, folder, None)
    [halves] = run_ranks(models.logits, 1, FAMILY, checkpoint, None)
    torch.testing.assert_close(ours, halves, rtol=0, atol=1e-6)  # one implementation, fp32, in two orders
    models.check_parity(FAMILY, checkpoint)


@pytest.fixture(scope="module")
def one_rank(checkpoint: Path) -> Mapping[str, Any]:
    layouts = {"plain": {}, "recompute": RECOMPUTE, "trained": TRAINED}
    [results] = run_ranks(train_layouts, 1, FAMILY, checkpoint, layouts)
    return results  # type: ignore[no-any-return]


def test_recomputation_finds_the_keys_of_the_first_computation(one_rank: Mapping[str, Any]) -> None:
    compare("recompute", [one_rank["recompute"]], one_rank["plain"])


def test_the_indexer_is_frozen_unless_its_loss_counts(one_rank: Mapping[str, Any]) -> None:
    """A frozen weight stands for itself where a gradient would be, in every step: it never changed."""
    for name, weight in one_rank["plain"].exported.items():
        if ".indexer." in name:
            for plain, trained in zip(one_rank["plain"].gradients, one_rank["trained"].gradients, strict=True):
                assert torch.equal(torch.from_numpy(plain[name]), weight)
                assert abs(trained[name]).max() > 1e-6


def test_the_indexer_loss_moves_the_indexer_alone(one_rank: Mapping[str, Any]) -> None:
    """In the first step, from equal weights: all other gradients are those without it, bit for bit."""
    plain, trained = one_rank["plain"].gradients[0], one_rank["trained"].gradients[0]
    differing = {name for name in plain if (plain[name] != trained[name]).any()}
    assert differing == {name for name in plain if ".indexer." in name}


def test_indexers_learn_by_the_formula(one_rank: Mapping[str, Any]) -> None:
    """Each from the mean attention of the layers that it serves. The prediction layer's serves that layer alone: its
    queries count as their predictions do, and its loss has no other scale than the key of all indexers."""
    coefficient, trained = TRAINED["dsa_indexer_loss_coeff"], one_rank["trained"]
    wanted, losses = indexer_gradients(recorded_samples(NUM_SAMPLES, HF["vocab_size"]))
    assert len(wanted) == 5 * len(losses) == 5 * 6
    for name, gradient in wanted.items():
        error = abs(trained.gradients[0][name] - coefficient * gradient).max() / abs(coefficient * gradient).max()
        assert error <= GRADIENT_TOLERANCE, f"{name} is off by {error:.1e}"
    assert abs(trained.history[0]["indexer_loss"] - np.mean(losses)) <= TOLERANCES["mean"]
    assert "indexer_loss" not in one_rank["plain"].history[0]


@pytest.mark.parametrize(
    ("num_ranks", "layouts"),
    [
        (2, {"tp2": {TP: 2}, "cp2": {CP: 2}, "pp2-recompute": {PP: 2, **RECOMPUTE}}),
        (4, {"tp2-cp2-ep4": {TP: 2, CP: 2, EP: 4}}),
    ],
)
def test_a_trained_indexer_is_the_same_in_every_layout(
    num_ranks: int, layouts: Mapping[str, Any], checkpoint: Path, one_rank: Mapping[str, Any]
) -> None:
    layouts = {name: {**layout, **TRAINED} for name, layout in layouts.items()}
    results = run_ranks(train_layouts, num_ranks, FAMILY, checkpoint, layouts, timeout_s=110)
    for name in layouts:
        compare(name, [result[name] for result in results], one_rank["trained"])


def test_sequences_no_longer_than_what_is_chosen(tmp_path: Path) -> None:
    """They attend to all keys, in every layout, and nothing chooses; an indexer that learns from them still does."""
    longest = max(sample.num_tokens for sample in recorded_samples(NUM_SAMPLES, HF["vocab_size"]))
    models.write_checkpoint(HF | {"index_topk": 2 * longest}, tmp_path)
    models.check_parity(FAMILY, tmp_path)
    one = {"plain": {}, "trained": TRAINED, "recompute": {**RECOMPUTE, **TRAINED}}
    [results] = run_ranks(train_layouts, 1, FAMILY, tmp_path, one)
    compare("recompute", [results["recompute"]], results["trained"])
    plain, trained = (results[name].gradients[0] for name in ("plain", "trained"))
    differing = {name for name in plain if (plain[name] != trained[name]).any()}
    assert differing == {name for name in plain if ".indexer." in name}
    two: dict[str, Any] = {"tp2": {TP: 2}, "cp2": {CP: 2}}
    found = run_ranks(train_layouts, 2, FAMILY, tmp_path, two, timeout_s=110)
    for name in two:
        compare(name, [result[name] for result in found], results["plain"])


def test_a_stage_that_starts_on_a_reusing_layer_is_not_built(checkpoint: Path) -> None:
    layout = {"pp2": {PP: 2, "num_layers_in_first_pipeline_stage": 3}}
    with pytest.raises(
        AssertionError, match=r"a pipeline stage starts on layer 3 \(.*\), which reuses the keys that layer 2"
    ):
        run_ranks(train_layouts, 2, FAMILY, checkpoint, layout)


@pytest.mark.parametrize("module", ["core_attn", "mla_up_proj"])
def test_a_part_that_cannot_be_computed_again_is_refused(module: str, checkpoint: Path) -> None:
    layout = {"selective": {"recompute_granularity": "selective", "recompute_modules": [module]}}
    with pytest.raises(AssertionError, match=r"no part that could be computed again by itself.*Leave out core_attn"):
        run_ranks(train_layouts, 1, FAMILY, checkpoint, layout)


@pytest.mark.parametrize("coefficient", [0.0, 0.5], ids=["frozen", "trained"])
def test_a_checkpoint_goes_into_another_layout(coefficient: float, checkpoint: Path, tmp_path: Path) -> None:
    [saved] = run_ranks(save, 1, checkpoint, tmp_path, {"dsa_indexer_loss_coeff": coefficient})
    layout = {TP: 2, "dsa_indexer_loss_coeff": coefficient}
    loaded, _ = run_ranks(load, 2, checkpoint, tmp_path, layout)
    assert saved.keys() == loaded.keys()
    assert [name for name in saved if not torch.equal(saved[name], loaded[name])] == []


class Attended(NamedTuple):
    """What transformers' attention got, [1, s, ...], its probabilities [1, h, s, s] and chosen keys [1, s, k]."""

    hidden: Tensor
    angles: tuple[Tensor, Tensor]
    weights: Tensor
    chosen: Tensor


def indexer_gradients(samples: Sequence[TrainSample]) -> tuple[dict[str, npt.NDArray[np.float64]], list[float]]:
    """By HF name, and the losses of all indexers: (DeepSeek-AI 2025), section 2.1.1, and arXiv 2603.12201 where one
    serves several layers, in float64. transformers' own indexer has no gradients."""
    prediction, seen = Prediction(HF), dict[int, Attended]()
    layers = prediction.model.model.layers
    prediction.model.set_attn_implementation("eager")  # the other ways keep their probabilities to themselves
    for number, layer in enumerate(layers):
        layer.self_attn.register_forward_hook(partial(note, seen, number), with_kwargs=True)
    choosing = [number for number, layer in enumerate(layers) if layer.self_attn.indexer is not None]
    total: dict[str, Tensor] = {}
    losses = dict.fromkeys(choosing, 0.0)
    for sample in samples:
        prediction.loss_and_gradients([sample])  # leaves gradients in the weights' place
        prediction.model.load_state_dict(models.random_model(HF).double().state_dict())
        for number, after in zip(choosing, [*choosing[1:], len(layers)], strict=True):
            target = torch.stack([seen[served].weights[0].detach().mean(0) for served in range(number, after)]).mean(0)
            attention = layers[number].self_attn
            ahead = 2 if number == HF["num_hidden_layers"] else 1
            loss = divergences(attention, seen[number], target) @ counted(sample, ahead, len(target))
            losses[number] += loss.item()
            named = {
                f"model.layers.{number}.self_attn.indexer.{name}": x for name, x in attention.indexer.named_parameters()
            }
            for name, gradient in zip(named, torch.autograd.grad(loss, list(named.values())), strict=True):
                total[name] = total.get(name, 0) + gradient
    num_loss_tokens = sum(int(sample.loss_mask.sum()) for sample in samples)
    gradients = {name: (gradient / num_loss_tokens).numpy() for name, gradient in total.items()}
    return gradients, [loss / num_loss_tokens for loss in losses.values()]


def note(
    seen: dict[int, Attended], number: int, module: Any, args: Any, given: Mapping[str, Any], found: Sequence[Tensor]
) -> None:
    seen[number] = Attended(given["hidden_states"].detach(), given["position_embeddings"], found[1], found[2])


def counted(sample: TrainSample, ahead: int, length: int) -> Tensor:
    """[length]: does the loss count the token that comes `ahead` tokens after each?"""
    prompt = torch.zeros(sample.num_tokens - sample.num_response_tokens)
    mask = torch.cat([prompt, torch.from_numpy(sample.loss_mask), torch.zeros(ahead)])
    return mask[ahead : ahead + length].double()


def divergences(attention: Any, given: Attended, target: Tensor) -> Tensor:
    """[s]: KL(target || softmax(I)) over the chosen keys, of a target [s, s]."""
    indexer, hidden, length = attention.indexer, given.hidden, len(target)
    latent = attention.q_a_layernorm(attention.q_a_proj(hidden)).detach()
    queries = rotated(indexer.wq_b(latent)[0].unflatten(-1, (HF["index_n_heads"], -1)), given.angles)
    keys = rotated(indexer.k_norm(indexer.wk(hidden))[0][:, None], given.angles)[:, 0]
    products = torch.einsum("snd,td->snt", queries, keys).relu() / (HF["index_n_heads"] * HF["index_head_dim"]) ** 0.5
    scores = torch.einsum("sn,snt->st", indexer.weights_proj(hidden)[0], products)
    seen = torch.zeros(length, length, dtype=torch.bool).scatter_(1, given.chosen[0].long(), True).tril()
    log_share = scores.masked_fill(~seen, -torch.inf).log_softmax(-1).masked_fill(~seen, 0)
    return (torch.xlogy(target, target) - target * log_share).sum(-1)


def rotated(x: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
    """[s, n, d], with the two halves of the first rotary dimensions turned."""
    size = HF["qk_rope_head_dim"]
    (one, other), rest = x[..., :size].chunk(2, -1), x[..., size:]
    cos, sin = (table[0, :, None, : size // 2] for table in angles)
    return torch.cat([one * cos - other * sin, other * cos + one * sin, rest], dim=-1)


def trainer(rank: Rank, folder: Path, layout: Mapping[str, Any]) -> Any:
    from slime.config.schema import SlimeConfig
    from slime_megatron.train.trainer import Trainer

    cfg = SlimeConfig()
    cfg.model.family, cfg.model.path, cfg.run.num_steps = FAMILY, str(folder), 1
    cfg.train.megatron, cfg.train.optimizer, cfg.sft.num_steps = dict(layout), {"lr": 1e-3}, 1
    cfg.train.mtp_loss_scale = 0.2
    return Trainer(cfg, *rank)


def save(rank: Rank, folder: Path, path: Path, layout: Mapping[str, Any]) -> dict[str, Tensor]:
    """One supervised step, then a checkpoint; the weights that it must hold."""
    from slime.config.schema import LossMean
    from slime.train.packing import pack

    saved = trainer(rank, folder, layout)
    saved.init_weights()
    samples = recorded_samples(4, HF["vocab_size"])
    [batch] = pack(samples, num_dp=1, align=saved.packing_align, max_tokens=128, loss_mean=LossMean.token)
    saved.train([batch], 0, "sft")
    saved.save(path)
    return {name: tensor.clone() for name, tensor in saved.export()}


def load(rank: Rank, folder: Path, path: Path, layout: Mapping[str, Any]) -> dict[str, Tensor]:
    loaded = trainer(rank, folder, layout)
    loaded.load(path)
    return {name: tensor.clone() for name, tensor in loaded.export()}
