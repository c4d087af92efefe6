"""The contract of a model plugin as one parametrised test, and as the table of its README.

    CONTRACTS = contracts(Path(__file__).parent / "configs")

    @pytest.mark.slow
    @pytest.mark.parametrize("check", CHECKS)
    @pytest.mark.parametrize("model", CONTRACTS)
    def test_contract(model: str, check: str) -> None:
        CHECKS[check](CONTRACTS[model])

Every `<name>.json` of the folder is the config.json of a small model with the structure of a real one (four layers,
so that two stages can be uneven). `python -m slime_testing.contract FOLDER` runs the same and prints what it found;
behind the folder come functions to call first, such as `package.hf:register` of a family that transformers lacks.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from importlib.metadata import EntryPoint
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from slime import plugins
from slime.models.bridge import HfConfig, PublishedBridge, traits_of
from slime.models.traits import Reference
from slime_testing import models, published
from slime_testing.models import Parallel
from slime_testing.ranks import run_ranks
from slime_testing.recorded import recorded_samples
from slime_testing.training import (
    EXTRA_LOSS_SCALE,
    GRADIENT_TOLERANCE,
    NUM_SAMPLES,
    Gradients,
    Trained,
    compare,
    train_layouts,
)

TP, PP, CP, EP = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "context_parallel_size",
    "expert_model_parallel_size",
)
UNEVEN = {PP: 2, "num_layers_in_first_pipeline_stage": 1}
LAYOUTS: Mapping[int, Mapping[str, Parallel]] = {
    2: {"tp2": {TP: 2}, "pp2 (1 + 3 layers)": UNEVEN, "cp2": {CP: 2}},
    4: {"tp2-pp2": {TP: 2, PP: 2}, "pp2-vpp2-cp2": {PP: 2, "virtual_pipeline_model_parallel_size": 2, CP: 2}},
}
LAYOUTS_MOE: Mapping[int, Mapping[str, Parallel]] = {
    2: {**LAYOUTS[2], "ep2": {EP: 2}, "tp2-ep2": {TP: 2, EP: 2}},
    4: {
        "tp2-pp2-ep2": {TP: 2, PP: 2, EP: 2},
        "cp2-dp2-ep2": {CP: 2, EP: 2},
        "tp2-cp2-ep4": {TP: 2, CP: 2, EP: 4},
        "pp2-vpp2-cp2": LAYOUTS[4]["pp2-vpp2-cp2"],
    },
}
"""By number of ranks; sequence parallelism comes with tensor parallelism, data parallelism with what is left."""

LOGITS_TOLERANCE = 1e-5
"""The two implementations add in another order: about 1e-6 at logits of order 1; a wrong norm costs 1e-2."""


LOSS_TOLERANCE = 1e-6
"""Nats: a mean in fp32 of a few hundred losses of order 5, each off by 1e-6 to either side."""


@dataclass
class Contract:
    """A small model of one family, with what the checks share: its checkpoint, and what one rank computes.

    Args:
        hf: its config.json.
        layouts: by number of ranks; None: `LAYOUTS_MOE` for a model with experts, otherwise `LAYOUTS`.
        logits_tolerance: largest difference of a logit; a looser one needs a reason.
    """

    hf: HfConfig
    layouts: Mapping[int, Mapping[str, Parallel]] | None = None
    logits_tolerance: float = LOGITS_TOLERANCE

    def __post_init__(self) -> None:
        self._scratch = tempfile.TemporaryDirectory(prefix="contract-")

    @property
    def family(self) -> str:
        return str(self.hf["model_type"])

    @cached_property
    def folder(self) -> Path:
        folder = Path(self._scratch.name) / "checkpoint"
        models.write_checkpoint(self.hf, folder)
        return folder

    @cached_property
    def one_rank(self) -> Trained:
        [results] = run_ranks(train_layouts, 1, self.family, self.folder, {"one rank": {}})
        return results["one rank"]  # type: ignore[no-any-return]

    def layouts_of(self, num_ranks: int) -> Mapping[str, Parallel]:
        if self.layouts is not None:
            return self.layouts[num_ranks]
        has_experts = "num_moe_experts" in plugins.load().models.create(self.family).transformer_config(self.hf)
        return (LAYOUTS_MOE if has_experts else LAYOUTS)[num_ranks]


def check_logits(contract: Contract) -> str:
    """Packed and alone, fp32, against transformers."""
    difference = models.check_parity(contract.family, contract.folder, tolerance=contract.logits_tolerance)
    return f"within {difference:.1e}"


def check_refusals(contract: Contract) -> str:
    with tempfile.TemporaryDirectory() as scratch:
        models.check_refusals(contract.family, contract.folder, Path(scratch))
    return "refused by name"


def check_one_rank(contract: Contract) -> str:
    _check_bytes(contract, "one rank", contract.one_rank)
    assert [values["grad_norm"] > 0 for values in contract.one_rank.history] == [True] * 3
    return "every byte equal"


def check_extra_losses(contract: Contract) -> str:
    """A block with a loss of its own learns by its formula, and nothing else notices that it does."""
    bridge = plugins.load().models.create(contract.family)
    entries = bridge.weight_mapping(contract.hf).entries
    found = []
    for trait in traits_of(bridge, contract.hf):
        if trait.extra_loss:
            assert trait.reference, f"{trait.name} has an extra loss, and nothing to compare it with"
            names = frozenset(name for x in entries if trait.learns_by in x.rule.learns_by for name in x.hf)
            found.append(_check_extra_loss(contract, trait.extra_loss().name, resolve_name(trait.reference)(), names))
    return "; ".join(found) or "none"


def _check_extra_loss(contract: Contract, metric: str, reference: Reference, names: frozenset[str]) -> str:
    """`names`: of the weights that it trains, and of others that rest, because it does not depend on them smoothly."""
    learned = contract.one_rank
    losses = [values[metric] for values in learned.history]
    samples = recorded_samples(NUM_SAMPLES, contract.hf["vocab_size"])
    loss, gradients = reference.loss_and_gradients(contract.hf, samples)
    assert abs(losses[0] - loss) <= LOSS_TOLERANCE, f"a loss of {losses[0]} instead of {loss}"
    assert losses == sorted(losses, reverse=True), f"it does not learn: {losses}"
    learning = {name for name in names & learned.gradients[0].keys() if gradients[name].any()}
    errors = {}
    for name in learning:
        wanted = EXTRA_LOSS_SCALE * gradients[name]
        errors[name] = float(abs(learned.gradients[0][name] - wanted).max() / abs(wanted).max())
    worst = max(errors, key=lambda name: errors[name])
    assert errors[worst] <= GRADIENT_TOLERANCE, f"the gradient of {worst} is off by {errors[worst]:.1e}"
    _check_stayed(learned, names - learning)
    _check_frozen(contract, names)
    found = f"within {abs(losses[0] - loss):.0e}, gradients {errors[worst]:.0e}; nothing else gets a gradient"
    return f"{metric} {found}"


def _check_frozen(contract: Contract, names: frozenset[str]) -> None:
    """Without its loss the layer stays as it was, and all other gradients are bit by bit what they were with it."""
    [results] = run_ranks(train_layouts, 1, contract.family, contract.folder, {"frozen": {}})
    frozen: Trained = results["frozen"]
    one, other = contract.one_rank.gradients[0], frozen.gradients[0]
    noticed = [name for name in one.keys() - names if not (one[name] == other[name]).all()]
    assert not noticed, f"it changes the gradients of {noticed}"
    _check_stayed(frozen, names)


def _check_stayed(trained: Trained, names: frozenset[str]) -> None:
    """Weights that do not learn stand for themselves among the gradients."""
    after: Gradients = trained.gradients[-1]
    moved = [name for name in names & after.keys() if not (after[name] == trained.exported[name].numpy()).all()]
    assert not moved, f"these were to stay as they were: {moved}"


def check_layouts(contract: Contract, num_ranks: int) -> str:
    """Every byte comes back, and three training steps are those of one rank."""
    layouts = contract.layouts_of(num_ranks)
    results = run_ranks(train_layouts, num_ranks, contract.family, contract.folder, layouts, timeout_s=110)
    differences = []
    for layout in layouts:
        _check_bytes(contract, layout, results[0][layout])
        differences.append(compare(layout, [result[layout] for result in results], contract.one_rank))
    metrics, norms, gradients = (max(kind) for kind in zip(*differences, strict=True))
    found = f"every byte equal; losses within {metrics:.0e}, norms {norms:.0e}, gradients {gradients:.0e}"
    return f"{', '.join(layouts)}: {found}"


def _check_bytes(contract: Contract, layout: str, trained: Trained) -> None:
    changed = models.changed_tensors(list(trained.exported.items()), contract.folder)
    assert not changed, f"{layout}: the round trip changed {changed}"
    assert list(trained.exported) == list(contract.one_rank.exported), f"{layout}: another order of export"


def check_fields(contract: Contract) -> str:
    """The table of config.json is what transformers' class and SGLang's say."""
    bridge = plugins.load().models.create(contract.family)
    if not isinstance(bridge, PublishedBridge):
        return "no table"
    found = published.differences(bridge.published, type(models.transformers_config(contract.hf)))
    assert not found, f"config.json, field by field: {'; '.join(found)}"
    unknown = published.unknown_reads(bridge.published)
    assert not unknown, f"SGLang reads these as well, with a default of its own: {', '.join(unknown)}"
    return f"{len(bridge.published.kinds)}, as transformers and SGLang read them"


CHECKS: Mapping[str, Callable[[Contract], str]] = {
    "fields": check_fields,
    "logits": check_logits,
    "bad checkpoints": check_refusals,
    "one rank": check_one_rank,
    "extra losses": check_extra_losses,
    "two ranks": partial(check_layouts, num_ranks=2),
    "four ranks": partial(check_layouts, num_ranks=4),
}
"""By name, which is also the row of the table. Each returns what it found, or raises AssertionError."""


def contracts(folder: Path, **options: Any) -> dict[str, Contract]:
    """The contract of every `<name>.json` in `folder`."""
    return {file.stem: Contract(json.loads(file.read_text()), **options) for file in sorted(folder.glob("*.json"))}


def table(found: Mapping[str, Contract]) -> str:
    """Markdown: one row a check of a model."""
    rows = [
        f"| {model.family} | {name} | {check(model)} |" for model in found.values() for name, check in CHECKS.items()
    ]
    return "\n".join(["| family | check | found |", "|---|---|---|", *rows])


if __name__ == "__main__":
    for function in sys.argv[2:]:
        EntryPoint(name="", group="", value=function).load()()
    sys.stdout.write(table(contracts(Path(sys.argv[1]))) + "\n")
