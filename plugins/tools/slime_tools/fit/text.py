"""What `slime plan --fit` prints, for people and for programs."""

from __future__ import annotations

import json
import math
from argparse import Namespace
from collections.abc import Iterator
from typing import Any

from slime import plugins
from slime.arguments import ArgumentParser
from slime.compose.compose import Composed
from slime.config.schema import EvalConfig, RolloutConfig
from slime.plan.document import SCHEMA
from slime.printable import printable
from slime.verbs.plan import examine_with_run_dir
from slime_tools.fit.candidate import PUBLISH, Candidate
from slime_tools.fit.estimate import MOVES, work_of
from slime_tools.fit.generation import EVALUATION, GENERATION, held_out_prompts
from slime_tools.fit.search import Fitted, fit
from slime_tools.memory.memory_plan import MARGIN, most
from slime_tools.memory.problems import gpu_warnings
from slime_tools.memory.trainer import GIB

EXCHANGES = ("tensor parallel", "context parallel", "expert parallel", "pipeline sends")
COLUMNS = {
    "compute": ("compute", "launches"),
    "again": ("recomputation", "log-probs"),
    "bubble": ("pipeline bubble",),
    "exchange": EXCHANGES,
    "update": ("gradients", "optimizer", MOVES),
    "publish": (PUBLISH,),
    "evaluate": (EVALUATION,),
    "generate": (GENERATION,),
}
"""Column -> parts of the estimate."""


def fit_report(composed: Composed, fitted: Fitted) -> str:
    """The candidates, what the first one's time and memory are made of, and what to type for it."""
    return "\n".join(line.rstrip() for line in _lines(composed, fitted))


def _lines(composed: Composed, fitted: Fitted) -> Iterator[str]:
    cfg, work = composed.cfg, work_of(composed.cfg)
    first = fitted.candidates[0]
    steps = f"{work.optimizer_steps} optimizer step{'s' if work.optimizer_steps > 1 else ''}"
    steps += f" in each of {work.epochs} epochs" if work.epochs > 1 else ""
    kind = f" for {cfg.cluster.gpu}" if cfg.cluster.gpu else ""
    yield f"{cfg.model.name} on {cfg.cluster.name}: the fastest of {fitted.num_tried} layouts, by estimate{kind}"
    longest = f"the longest {work.longest:,.0f}"
    if work.over_sampling > 1:
        longest += ", which over-sampling does not wait for"
    yield f"  seconds of {work.sequences:,} sequences of {work.tokens:,.0f} tokens in the mean, {longest}; {steps}"
    yield from _evaluated(cfg.eval, cfg.rollout)
    yield f"  each leaves {MARGIN:.1%} of a GPU free; * is the layout that the config has; 'slime probe' measures one"
    yield from (f"  {warning}" for warning in gpu_warnings(cfg.cluster))
    yield ""
    sizes = "".join(f"{name:>5}" for name in ("TP", "PP", "CP", "EP", "ETP", "DP"))
    yield f"   {sizes}  tokens a pack  recompute  Adam  {'engines':<16}" + "".join(
        f"{name:>9}" for name in (*COLUMNS, "total")
    )
    for one in fitted.candidates:
        yield _row(one)
    if fitted.rank:
        number = f"number {fitted.rank:,} of {fitted.num_layouts:,}"
        yield f"  * is {number} by these seconds, whether those before it fit or not"
    given = next((one for one in fitted.candidates if one.is_given), None)
    for problem in given.problems if given else ():
        yield f"  * cannot be: {problem}"
    yield from ["", "the first one's seconds"]
    for part, seconds in first.seconds.items():
        yield f"  {part:<28}{seconds:>9.1f}"
    yield from ["", "the first one's memory", *_memory(first), ""]
    if first.is_given:
        yield "none that was tried is faster than the layout that the config has"
    else:
        yield from ["type behind the same words", *(f"  {word}" for word in first.words)]


def _evaluated(evaluation: EvalConfig, rollout: RolloutConfig) -> Iterator[str]:
    for home, held_out in evaluation.all().items():
        prompts, is_counted = held_out_prompts(rollout, held_out)
        known = "" if is_counted else " (taken to be a step's: they are not here)"
        of = f" ({name})" if (name := home.removeprefix("eval").removeprefix(".sets.")) else ""
        samples = f"{held_out.samples_per_prompt} samples of {prompts:,} prompts{known}"
        yield f"  an evaluation{of} of {samples}, 1/{evaluation.interval} of it a step"


def _row(one: Candidate) -> str:
    grid, train = one.grid, one.cfg.train
    sizes = "".join(f"{getattr(grid, name):>5}" for name in ("tp", "pp", "cp", "ep", "etp", "dp"))
    recompute = train.megatron.get("recompute_granularity") or "off"
    adam = "CPU" if train.optimizer.get("optimizer_cpu_offload") else "GPU"
    seconds = [sum(one.seconds.get(part, 0.0) for part in parts) for parts in COLUMNS.values()]
    shown = "".join(f"{value:>9,.1f}" if math.isfinite(value) else f"{'-':>9}" for value in [*seconds, one.total])
    tokens = f"{train.max_tokens_per_micro_batch:>15,}"
    return f" {'*' if one.is_given else ' '} {sizes}{tokens}  {recompute:<9}  {adam}   {_engines(one):<16}{shown}"


def _engines(one: Candidate) -> str:
    """Engines x devices, and data-parallel ranks of each, of every group."""
    groups = [rank.group for rank in one.memory.engines.values()]
    return ", ".join(
        f"{group.num_engines}x{group.devices_per_engine}" + (f" DP {group.dp}" if group.dp > 1 else "")
        for group in groups
    )


def _memory(one: Candidate) -> Iterator[str]:
    plan = one.memory
    for what, places, size in (("device", plan.devices, plan.device_bytes), ("host", plan.hosts, plan.host_bytes)):
        place = max(places, key=most)
        of = f" of {size / GIB:.1f}" if size else ""
        yield f"  {what:<8}{most(place) / GIB:>8.1f} GiB{of}, most while '{place.table.peak.value}' ({place.name})"


def fit_document(composed: Composed, fitted: Fitted) -> dict[str, Any]:
    """As plain values; `docs/plan.md` describes them."""
    work = work_of(composed.cfg)
    return {
        "schema": SCHEMA,
        "work": {
            "sequences": work.sequences,
            "tokens": work.tokens,
            "optimizer_steps": work.optimizer_steps,
            "epochs": work.epochs,
        },
        "rank": fitted.rank,
        "layouts": fitted.num_layouts,
        "candidates": [_candidate(one) for one in fitted.candidates],
    }


def _candidate(one: Candidate) -> dict[str, Any]:
    devices, hosts = max(one.memory.devices, key=most), max(one.memory.hosts, key=most)
    return {
        "given": one.is_given,
        "problems": [problem.document() for problem in one.problems],
        "words": one.words,
        "sizes": {name: getattr(one.grid, name) for name in ("tp", "pp", "cp", "ep", "etp", "dp")},
        "seconds": {part: value if math.isfinite(value) else None for part, value in one.seconds.items()},
        "device_bytes": round(most(devices)),
        "host_bytes": round(most(hosts)),
    }


def add_arguments(parser: ArgumentParser) -> None:
    parser.description = "Proposes layouts that fit the cluster, the fastest first (docs/plan.md)."
    parser.add_keys()
    parser.add_argument("--json", action="store_true", help="print them for programs")


def run(args: Namespace) -> None:
    composed = examine_with_run_dir(args.keys)
    fitted = fit(composed, plugins.load())
    text = json.dumps(fit_document(composed, fitted), indent=1) if args.json else fit_report(composed, fitted)
    print(printable(text))
