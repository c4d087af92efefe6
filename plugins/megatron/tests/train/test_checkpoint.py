"""Saving and loading: bit for bit in the same layout, the same training in another one, and clear errors."""

from __future__ import annotations

import resource
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from slime.digest import facts_of
from slime.errors import SlimeError
from slime_testing.ranks import Rank, run_ranks

pytestmark = pytest.mark.slow

TP2_PP2 = {"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2}
EP2 = {"expert_model_parallel_size": 2}
VOCAB_SIZE = 96


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from slime_testing.models import write_checkpoint

    folder = tmp_path_factory.mktemp("model")
    write_checkpoint(moe_config(), folder)
    return folder


def moe_config(**changes: Any) -> dict[str, Any]:
    return {
        "attention_bias": True,
        "first_k_dense_replace": 1,
        "head_dim": 16,
        "hidden_size": 32,
        "intermediate_size": 48,
        "max_position_embeddings": 128,
        "model_type": "glm4_moe",
        "moe_intermediate_size": 16,
        "n_group": 1,
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "num_attention_heads": 4,
        "num_experts_per_tok": 2,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "num_nextn_predict_layers": 1,
        "pad_token_id": 0,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"partial_rotary_factor": 0.5, "rope_theta": 10000.0, "rope_type": "default"},
        "routed_scaling_factor": 1.0,
        "topk_group": 1,
        "use_qk_norm": True,
        "vocab_size": VOCAB_SIZE,
    } | changes


def start(rank: Rank, model: Path, layout: dict[str, Any], mtp_loss_scale: float | None = 0.2) -> Any:
    """A trainer with supervised and RL stage, learning rates that change every step, and a KL reference."""
    from slime.config.schema import LrDecay, SlimeConfig
    from slime_megatron.train.trainer import Trainer

    cfg = SlimeConfig()
    cfg.model.family, cfg.model.path, cfg.run.num_steps = "glm4_moe", str(model), 6
    cfg.train.megatron, cfg.train.optimizer = layout, {"lr": 1e-3, "adam_eps": 1e-6}
    cfg.train.lr_decay, cfg.train.lr_warmup_steps = LrDecay.linear, 1
    cfg.sft.num_steps, cfg.sft.lr, cfg.algo.kl_coef = 3, 1e-3, 0.1
    cfg.train.mtp_loss_scale = mtp_loss_scale
    return Trainer(cfg, *rank)


def train(trainer: Any, steps: range) -> list[float]:
    """Two supervised steps, then RL; a fresh set of samples a step; returns the sum of both losses by step."""
    values = [take_step(trainer, step) for step in steps]
    return [step["loss"] + step["mtp_loss"] for step in values]


def take_step(trainer: Any, step: int) -> dict[str, float]:
    from slime.train.packing import pack
    from slime_testing.recorded import recorded_samples

    samples = recorded_samples(12, VOCAB_SIZE, seed=step)
    options = {"num_dp": trainer.data_parallel_size, "align": trainer.packing_align, "max_tokens": 128}
    batches = pack(samples, loss_mean=trainer.cfg.algo.loss_mean, num_optimizer_steps=1 + (step >= 2), **options)
    if step < 2:
        return trainer.train(batches, step, "sft")
    if step == 2:
        trainer.snapshot_reference()
    return trainer.train(batches, step, "rl")


def train_and_save(rank: Rank, model: Path, layout: dict[str, Any], folder: Path, saves: list[int], end: int) -> Any:
    """Steps 0 to `end`, saving after each of `saves`; returns losses, the whole final weights and the last save's
    facts."""
    trainer = start(rank, model, layout)
    trainer.init_weights()
    losses = []
    for step in range(end):
        losses += train(trainer, range(step, step + 1))
        if step + 1 in saves:
            (folder / str(step + 1)).mkdir(exist_ok=True)
            torch.distributed.barrier()
            written = trainer.save(folder / str(step + 1))
    return losses, weights_of(trainer), written


def load_and_train(rank: Rank, model: Path, layout: dict[str, Any], folder: Path, begin: int, end: int) -> Any:
    trainer = start(rank, model, layout)
    trainer.load(folder / str(begin))
    return train(trainer, range(begin, end)), weights_of(trainer)


def weights_of(trainer: Any) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in trainer.export()}


@pytest.fixture(scope="module")
def whole_run(model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[float], dict[str, Any]]:
    """Five steps on one rank, with checkpoints in the supervised stage, at its end and amid RL."""
    folder = tmp_path_factory.mktemp("one")
    [(losses, weights, _)] = run_ranks(train_and_save, 1, model, {}, folder, [1, 2, 4], 5)
    return folder, losses, weights


@pytest.mark.parametrize("begin", [1, 2, 4])
def test_resuming_continues_bit_for_bit(
    model: Path, whole_run: tuple[Path, list[float], dict[str, Any]], begin: int
) -> None:
    folder, losses, weights = whole_run
    (resumed,) = run_ranks(load_and_train, 1, model, {}, folder, begin, 5)
    assert resumed[0] == losses[begin:]
    assert resumed[1].keys() == weights.keys()
    assert all(torch.equal(resumed[1][name], weights[name]) for name in weights)


@pytest.mark.parametrize(("num_ranks", "layout"), [(4, TP2_PP2), (2, EP2)], ids=["tp2-pp2", "ep2"])
def test_another_layout_continues_the_same_training(
    model: Path, whole_run: tuple[Path, list[float], dict[str, Any]], num_ranks: int, layout: dict[str, Any]
) -> None:
    folder, losses, weights = whole_run
    results = run_ranks(load_and_train, num_ranks, model, layout, folder, 4, 5)
    compare(results[0], (losses[4:], weights))


def test_a_sharded_checkpoint_continues_on_one_rank(model: Path, tmp_path: Path) -> None:
    (losses, weights, written), (_, _, also_written) = run_ranks(train_and_save, 2, model, EP2, tmp_path, [3], 4)
    (got,) = run_ranks(load_and_train, 1, model, {}, tmp_path, 3, 4)
    compare(got, (losses[3:], weights))
    large = [*(tmp_path / "3").glob("*.distcp"), tmp_path / "3/.metadata"]
    assert written | also_written == {path.name: facts_of(path) for path in large}


def save_meanwhile(rank: Rank, model: Path, folder: Path) -> tuple[dict[str, Any], bool]:
    """Saves in both ways at one step; the training goes on before anybody waits for the second."""
    trainer = start(rank, model, EP2)
    trainer.init_weights()
    train(trainer, range(3))
    trainer.save(folder / "waited")
    saving = trainer.begin_save(folder / "meanwhile")
    train(trainer, range(3, 4))
    return saving.wait(), saving.is_done


def test_what_is_trained_meanwhile_is_not_in_the_checkpoint(model: Path, tmp_path: Path) -> None:
    for name in ("waited", "meanwhile"):
        (tmp_path / name).mkdir()
    results = run_ranks(save_meanwhile, 2, model, tmp_path)
    written = {name: facts for of_rank, _ in results for name, facts in of_rank.items()}
    large = [*(tmp_path / "meanwhile").glob("*.distcp"), tmp_path / "meanwhile/.metadata"]
    assert written == {path.name: facts_of(path) for path in large}
    assert all(is_done for _, is_done in results)
    waited, meanwhile = run_ranks(load_both, 1, model, tmp_path)[0]
    compare(meanwhile, waited)
    assert all(torch.equal(meanwhile[1][name], waited[1][name]) for name in waited[1])


def save_several_at_once(rank: Rank, model: Path, folder: Path) -> None:
    """One step after the other, the first without a reference, and nobody waits for files before others begin."""
    trainer = start(rank, model, EP2)
    trainer.init_weights()
    savings = []
    for step, stores in ((2, ["disk"]), (3, ["disk"]), (4, ["memory", "disk"])):
        train(trainer, range(step - 1 if savings else 0, step))
        savings += [trainer.begin_save(folder / store / str(step)) for store in stores]
    for saving in savings:
        saving.wait()


def load_from_elsewhere(rank: Rank, model: Path, layout: dict[str, Any], folder: Path, there: Path, step: int) -> Any:
    """The folder has not all shards, and each rank reads of the others what it needs."""
    asked = []

    def elsewhere(name: str) -> Any:
        asked.append(name)
        return (there / name).open("rb")

    trainer = start(rank, model, layout)
    trainer.load(folder, elsewhere)
    return (train(trainer, range(step, 5)), weights_of(trainer)), asked


@pytest.mark.parametrize(("num_ranks", "layout"), [(2, EP2), (1, {})], ids=["same-layout", "another-layout"])
def test_shards_are_read_from_where_they_are(
    model: Path, whole_run: tuple[Path, list[float], dict[str, Any]], tmp_path: Path, num_ranks: int, layout: Any
) -> None:
    places = {"disk/2": 2, "disk/3": 3, "memory/4": 4, "disk/4": 4}
    for place in places:
        (tmp_path / place).mkdir(parents=True)
    run_ranks(save_several_at_once, 2, model, tmp_path)
    for place, step in places.items():
        (there := tmp_path / place / "there").mkdir()
        moved = [shard.rename(there / shard.name).name for shard in (tmp_path / place).glob("__1_*.distcp")]
        assert moved
        found = run_ranks(load_from_elsewhere, num_ranks, model, layout, tmp_path / place, there, step)
        (result, _), asked = found[0], {name for _, names in found for name in names}
        assert asked <= {*moved}
        assert asked
        compare(result, (whole_run[1][step:], whole_run[2]))


def load_both(rank: Rank, model: Path, folder: Path) -> list[Any]:
    trainer = start(rank, model, {})
    found = []
    for name in ("waited", "meanwhile"):
        trainer.load(folder / name)
        found.append((train(trainer, range(3, 5)), weights_of(trainer)))
    return found


def compare(got: Any, wanted: Any) -> None:
    """Sums in another order: losses of order 1 to 3e-6; weights that Adam moved by up to 1e-3 a step to 1e-5."""
    assert got[0] == pytest.approx(wanted[0], abs=3e-6)
    for name, tensor in wanted[1].items():
        torch.testing.assert_close(got[1][name], tensor, rtol=0, atol=1e-5, msg=name)


def load_message(rank: Rank, model: Path, folder: Path) -> str:
    trainer = start(rank, model, {})
    with pytest.raises(SlimeError) as refused:
        trainer.load(folder)
    return str(refused.value)


def test_a_checkpoint_of_another_model_is_refused(
    tmp_path: Path, whole_run: tuple[Path, list[float], dict[str, Any]]
) -> None:
    from slime_testing.models import write_checkpoint

    write_checkpoint(moe_config(hidden_size=64), tmp_path)
    (message,) = run_ranks(load_message, 1, tmp_path, whole_run[0] / "1")
    assert message.startswith(f"{whole_run[0] / '1'}: the trainer's checkpoint is not a checkpoint of this model")


def test_a_layer_that_was_frozen_stays_so(model: Path, whole_run: tuple[Path, Any, Any], tmp_path: Path) -> None:
    """One that learned may be frozen; the other way round there is nothing to take its optimizer's state from."""
    run_ranks(freeze_and_save, 1, model, whole_run[0] / "4", tmp_path)
    (message,) = run_ranks(load_message, 1, model, tmp_path)
    assert message.startswith(f"train.mtp_loss_scale: the checkpoint {tmp_path} was saved without it")


def freeze_and_save(rank: Rank, model: Path, saved: Path, folder: Path) -> None:
    trainer = start(rank, model, {}, mtp_loss_scale=None)
    trainer.load(saved)
    trainer.save(folder)


def test_a_damaged_checkpoint_is_refused(
    model: Path, tmp_path: Path, whole_run: tuple[Path, list[float], dict[str, Any]]
) -> None:
    shutil.copytree(whole_run[0] / "1", tmp_path / "1")
    (tmp_path / "1" / "metadata.json").unlink()
    (message,) = run_ranks(load_message, 1, model, tmp_path / "1")
    assert message.startswith(f"{tmp_path / '1'}: ")


def test_a_full_disk_is_an_error_that_says_so(model: Path, tmp_path: Path) -> None:
    (message,) = run_ranks(save_with_little_room, 1, model, tmp_path)
    assert message.startswith(f"{tmp_path}: the disk (or a quota or file-size limit on it) is full")


def save_with_little_room(rank: Rank, model: Path, folder: Path) -> str:
    """A file-size limit stands in for the full disk; writer processes inherit it."""
    trainer = start(rank, model, {})
    trainer.init_weights()
    train(trainer, range(1))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # the write then fails with an OSError
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, before[1]))
    with pytest.raises(SlimeError) as refused:
        trainer.save(folder)
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    return str(refused.value)
