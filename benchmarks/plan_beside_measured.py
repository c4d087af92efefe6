"""Seconds that `slime plan` estimates beside those that were measured, and whether it puts layouts in their order.

    python benchmarks/plan_beside_measured.py              # rows of plan_beside_measured.toml; needs no GPU
    python benchmarks/plan_beside_measured.py --measure    # eight layouts of two GPUs, measured now: within ten minutes
    python benchmarks/plan_beside_measured.py --measure --device cpu --tiny   # two minutes, to see that it runs

Each row's config is composed as the run's was, and asked of the functions that `slime plan`, `--fit` and `slime probe`
ask, with the lengths that the run had: a plan alone takes them to be spread evenly up to their limits. The layouts
train 16 layers of GLM-4-9B's widths on the same 128 sequences of 1,024 tokens, by the real Trainer (`train.py`).

The rank correlation is Spearman's: of the estimated order with the measured one. Layouts of different numbers of tokens
are put in order by seconds a token.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from machine import conditions
from train_models import DATA, TINY, arguments_of
from train_samples import Case

from slime.compose.compose import examine
from slime.plan.flops import ForwardFlops
from slime_testing.ranks import run_ranks
from slime_tools.fit.estimate import MOVES, Layout, Work, training_seconds, work_of
from slime_tools.fit.generation import rollout_seconds
from slime_tools.memory.estimate import GpuMemory
from slime_tools.memory.memory_plan import MemoryPlan
from slime_tools.publish.part import publish_links, publish_seconds
from train import CLUSTERS, FOUR, Measured, measure

TABLE = Path(__file__).with_suffix(".toml")
WITHIN, ORDERED = 0.15, 0.9
"""What was promised."""
MODEL, LAYERS, SEQUENCE = "glm4-9b", 16, 1024
"""Of the layouts."""
SMALLER = 16
"""Times that a tiny pack and its sequences have fewer tokens."""
CASE = {field.name for field in dataclasses.fields(Case)}
HEAD = "| run | part | estimated, s | measured, s | ratio | commit | source |\n|---|---|---|---|---|---|---|"

Pair = tuple[float, float]
"""Estimated and measured."""


def plan_of(words: Sequence[str]) -> MemoryPlan:
    """The plan of a config on GPUs, whether it fits or not: what was measured did."""
    composed = examine(words)
    for problem in composed.problems:
        if not problem.where.startswith("memory"):
            raise problem
    assert isinstance(composed.memory, GpuMemory), "of a cluster of GPUs"
    return composed.memory.plan


def training(plan: MemoryPlan, work: Work) -> tuple[float, float]:
    """Estimated seconds of training, and of the trainers' way to the host and back."""
    trained = ForwardFlops(plan.model, plan.weights, work.tokens)
    parts = training_seconds(work, trained, Layout.of(plan), plan.trainers)
    moves = parts.pop(MOVES, 0.0)
    return sum(parts.values()), moves


def case_of(row: Mapping[str, Any]) -> Case:
    return Case(**{name: value for name, value in row.items() if name in CASE})


def words_of(row: Mapping[str, Any], folder: str) -> list[str]:
    """What `train.py` composes for a row, with the GPU that it was measured on."""
    gpus = row.get("gpus", 1)
    model = arguments_of(row["model"], gpus, folder)
    cluster = [f"+cluster={CLUSTERS['cuda', gpus]}", *FOUR * (gpus == 4), f"cluster.gpu={row.get('gpu', 'h200')}"]
    return [*model, *cluster, *DATA, *case_of(row).arguments(), *row.get("words", [])]


def estimated(row: Mapping[str, Any]) -> float:
    """Seconds of an optimizer step of a row of `train.py`."""
    case = case_of(row)
    with tempfile.TemporaryDirectory() as folder:
        plan = plan_of(words_of(row, folder))
    sequences = row.get("packs", 4) * plan.grid.dp * case.pack // case.sequence
    return training(plan, Work(sequences, case.sequence, most=case.sequence))[0]


def of_step(row: Mapping[str, Any]) -> dict[str, float]:
    """Estimated seconds of a step by part, of a run whose lengths the row has."""
    plan = plan_of(row["words"])
    seconds = publish_seconds(plan, publish_links(plan.topology, plan.weights, plan.model))
    found = {"publish": seconds.total} if seconds else {}
    if "response" in row:
        lengths = {"tokens": row["prompt"] + row["response"], "prompt": row["prompt"]}
        work = dataclasses.replace(work_of(plan.cfg), **lengths, most=row.get("most"))
        found["training"], found["moves"] = training(plan, work)
        found["generation"] = rollout_seconds(plan.cfg.rollout, plan.cfg.cluster, work, plan.engines.values())
    return found


def line(run: str, part: str, pair: Pair, row: Mapping[str, Any]) -> str:
    ratio = pair[0] / pair[1]
    mark = "" if abs(ratio - 1) <= WITHIN else " (over)"
    fitted = ", fitted" if row.get("fitted") else ""
    seconds = f"{pair[0]:.3g} | {pair[1]:.3g} | {ratio:.2f}{mark}"
    return f"| {run} | {part} | {seconds} | {row['commit']} | {row['source']}{fitted} |"


def name_of(row: Mapping[str, Any]) -> str:
    case = case_of(row)
    switched = ", recompute" * case.recompute + ", CPU Adam" * case.cpu_adam
    layers = "".join(f", {word.rpartition('=')[2]} layers" for word in row.get("words", ()) if "num_layers" in word)
    gpus = f"{row.get('gpus', 1)} x {row.get('gpu', 'h200')}"
    return f"{row['model']}{layers}, {gpus}, {case.layout}, packs {case.pack} of {case.sequence}{switched}"


def order(pairs: Sequence[Pair]) -> float:
    """Spearman's rank correlation of estimates with what was measured; no two are equal."""
    ranks = [[sorted(values).index(value) for value in values] for values in zip(*pairs, strict=True)]
    return statistics.correlation(*ranks)


def lines(table: Mapping[str, list[dict[str, Any]]]) -> Iterator[str]:
    """The table of everything that was measured, and what follows from it."""
    yield HEAD
    fitted: list[Pair] = []
    compared: list[Pair] = []
    by_layout: list[Pair] = []
    for row in table["training"]:
        pair = estimated(row), row["seconds"]
        yield line(name_of(row), "training", pair, row)
        (fitted if row.get("fitted") else compared).append(pair)
        if row["model"] == MODEL and row.get("gpus") == 2:
            tokens = row["packs"] * row["pack"]
            by_layout.append((pair[0] / tokens, pair[1] / tokens))
    for row in table["step"]:
        found = of_step(row)
        words = " ".join(word.removeprefix("+").partition("=")[2] if word[0] == "+" else word for word in row["words"])
        for part in ("training", "generation", "moves", "publish"):
            if part in row:
                yield line(words, part, (found[part], row[part]), row)
                (fitted if row.get("fitted") else compared).append((found[part], row[part]))
    for what, pairs in (
        ("\nof rows that constants were chosen by", fitted),
        ("of rows that are compared alone", compared),
    ):
        near = sum(abs(one / other - 1) <= WITHIN for one, other in pairs)
        yield f"{what} {near} of {len(pairs)} within {WITHIN:.0%}"
    yield f"rank correlation over {len(by_layout)} layouts of {MODEL} on two GPUs: {order(by_layout):.2f}"
    pairs = [(estimated(layout_row(row)), row["seconds"]) for row in table["layout"] if "seconds" in row]
    if len(pairs) > 1:
        yield f"... over {len(pairs)} that were measured together: {order(pairs):.2f}"


def layout_row(row: Mapping[str, Any]) -> dict[str, Any]:
    words = [f"model.num_layers={LAYERS}"]
    return {"model": MODEL, "gpus": 2, "sequence": SEQUENCE, "words": words, **row}


def measured_layouts(rows: Sequence[dict[str, Any]], device: str, *, tiny: bool) -> Iterator[str]:
    """A line for each layout, as soon as it is measured, and their rank correlation."""
    yield "| layout | packs | estimated, s | measured, s | ratio | tokens/s |\n|---|---|---|---|---|---|"
    pairs: list[Pair] = []
    for row in map(layout_row, rows):
        case, packs = case_of(row), row["packs"]
        model = words_of(row, "")
        if device == "cpu":  # where Adam is in any case
            case = dataclasses.replace(case, cpu_adam=False)
        if tiny:
            case = dataclasses.replace(case, pack=case.pack // SMALLER, sequence=case.sequence // SMALLER)
            model = [f"+model={TINY[MODEL]}", f"+cluster={CLUSTERS[device, 2]}", *DATA]
        ranks = run_ranks(measure, 2, model, dataclasses.astuple(case), packs, False, timeout_s=200)
        measured = Measured.of_all([Measured(*fields) for fields in ranks])
        pairs.append((estimated(row), measured.seconds))
        switched = ", recompute" * case.recompute + ", CPU Adam" * case.cpu_adam
        cells = [case.layout + switched, f"{packs} of {case.pack}", f"{pairs[-1][0]:.3f}", f"{measured.seconds:.3f}"]
        cells += [f"{pairs[-1][0] / measured.seconds:.2f}", f"{measured.num_tokens / measured.seconds:,.0f}"]
        yield f"| {' | '.join(cells)} |"
    found = order(pairs)
    verdict = "" if tiny else f", promised > {ORDERED}: {'kept' if found > ORDERED else 'MISSED'}"
    yield f"\nrank correlation {found:.2f}{verdict}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", action="store_true", help="the layouts, on this machine")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument(
        "--tiny", action="store_true", help="a tiny model and small packs; estimates stay the real ones"
    )
    parser.add_argument("--only", type=int, nargs="*", help="numbers of the layouts to measure")
    options = parser.parse_args()
    table = tomllib.loads(TABLE.read_text())
    rows = table["layout"] if options.only is None else [table["layout"][number] for number in options.only]
    print(f"{conditions()}\n")
    for one in measured_layouts(rows, options.device, tiny=options.tiny) if options.measure else lines(table):
        print(one, flush=True)


if __name__ == "__main__":
    main()
