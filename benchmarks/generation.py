"""Log-probs of sampled tokens, engine against trainer, in bf16 on one GPU: every family, at its real head sizes.

    python benchmarks/generation.py [MODEL...]
    python benchmarks/generation.py GLM-4.5-Air DeepSeek-R1 GLM-5.2 --fp8 block [--engine moe_runner_backend=triton]
    python benchmarks/generation.py GLM-4.5-Air Qwen3-30B-A3B --replay [--widths hidden_size=2048]
    python benchmarks/generation.py FOLDER --replay --device cpu --engine dtype=bfloat16

Models are cut from published config.json files (see `tests.on_gpu`) and served by stock SGLang, all at once.
Differences are in nats: mean, 90 % of the tokens, and largest. "Rounding" is what one side's costs: the trainer in bf16
against itself in fp32, mean and 95 % of the tokens. Both sides' may cost twice that, or the exit code is 1. Where the
engine chooses `index_topk` keys, by scores in fp8, the trainer does so too; "own keys" is the mean had it chosen by
scores in bf16, as in training, "control" had it attended to all keys.

With `--fp8` engines hold the weights in FP8. Rows are then by cause too, as `slime-megatron` finds it. The
trainer's weights are such that E4M3 loses nothing of them, unless `--unrounded`. What FP8 does not explain may be twice
what rounding costs one side, activations in FP8 included. `--engine` gives fields of SGLang's ServerArgs, such as
kv_cache_dtype=fp8_e4m3, whose cost is part of "rest".

With `--replay` engines record their experts, and the trainer scores the same tokens with those as well
(`slime-megatron`). "Own experts" is the mean without replay, "engine's experts" with it, "routing" lies
between the trainer's two scores. On GPUs replay is to leave at most half of the difference, of all mixtures of experts
together. Models are as narrow as the others, unless `--widths` gives fields of config.json. FOLDER has a config.json of
its own.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import yaml
from machine import conditions

from slime.config.paths import resolve
from slime.config.schema import Device
from slime_plugin_mimo import hf

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.agreement import Agreement  # noqa: E402
from tests.on_gpu import compare_on_gpu  # noqa: E402

FAMILIES = ROOT / "plugins/models"
MODELS = (
    "GLM-4-9B-0414",
    "GLM-4.5-Air",
    "GLM-4.7-Flash",
    "DeepSeek-R1",
    "DeepSeek-V3.2",
    "GLM-5.2",
    "Qwen3-4B",
    "Qwen3-30B-A3B",
    "MiMo-7B-RL",
)
CAUSES = ("weights", "experts", "activations", "rest")
EXPERTS = {"own_experts": "own experts", "same_experts": "engine's experts", "routing": "routing"}


def config_of(name: str) -> Path:
    """Of a published model, or in a folder.

    Raises:
        SlimeError: it is neither.
    """
    if name in MODELS:
        return next(FAMILIES.glob(f"*/*/assets/{name}/config.json"))
    return resolve(name) / "config.json"


def what_is_left(rows: Sequence[Agreement]) -> str:
    """Of the gap of all mixtures of experts, where engines' experts are replayed."""
    with_experts = [row for row in rows if "own_experts" in row.causes and "same_experts" in row.causes]
    own, same = (
        sum(row.causes[name] * row.causes["num_tokens"] for row in with_experts)
        for name in ("own_experts", "same_experts")
    )
    if not own:
        return "no mixture of experts whose engine is not quantised: nothing was replayed"
    return f"replay leaves {same / own:.1%} of the difference, at most half of which is promised on GPUs"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "models", nargs="*", metavar="MODEL", help=f"{', '.join(MODELS)}, or a folder with a config.json"
    )
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--replay", action="store_true", help="with the engine's experts as well")
    parser.add_argument("--widths", nargs="*", default=[], metavar="FIELD=NUMBER", help="of config.json")
    parser.add_argument("--fp8", help="rollout.fp8: block, or an FP8 folder")
    parser.add_argument("--unrounded", action="store_true", help="train weights that E4M3 does lose something of")
    parser.add_argument("--fp32-lm-head", action="store_true", help="model.fp32_lm_head=true")
    parser.add_argument("--batch-invariant", action="store_true", help="model.batch_invariant=true")
    parser.add_argument("--engine", nargs="*", default=[], metavar="FIELD=VALUE")
    options = parser.parse_args()
    published = [config_of(name) for name in options.models or MODELS]
    engine, widths = (
        {name: yaml.safe_load(value) for name, _, value in (field.partition("=") for field in fields)}
        for fields in (options.engine, options.widths)
    )
    hf.register()
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="generation-") as scratch:
        found = compare_on_gpu(
            published,
            Path(scratch),
            device=Device(options.device),
            engine=engine,
            fp8=options.fp8,
            round_trained=not options.unrounded,
            routing=options.replay,
            widths=widths,
            fp32_lm_head=options.fp32_lm_head,
            batch_invariant=options.batch_invariant,
        )
    failures = [
        f"{path.parent.name}: {error}" for path, one in zip(published, found, strict=True) if (error := one.exception())
    ]
    rows = [row for one in found if not one.exception() for row in one.result()]
    print(f"{conditions()}\n")
    causes = (*(CAUSES if options.fp8 else ()), *(EXPERTS if options.replay else ()))
    titles = [EXPERTS.get(cause, cause) for cause in causes]
    columns = ["family", "cut from", "tokens", "mean", "90 %", "max", "rounding: mean", "95 %", *titles]
    print(f"| {' | '.join([*columns, 'own keys', 'control'])} |\n|{'---|' * (len(columns) + 2)}")
    for row in rows:
        name = f"{row.model} {row.sequences}".strip()
        others = [*(row.causes.get(cause) for cause in causes), row.own_keys, row.control]
        more = " | ".join("" if value is None else f"{value:.4f}" for value in others)
        apart = f"{row.mean:.4f} | {row.high:.3f} | {row.max:.3f} | {row.rounding:.4f} | {row.high_rounding:.3f}"
        print(f"| {row.family} | {name} | {row.num_tokens} | {apart} | {more} |")
    print(f"{time.perf_counter() - start:.0f} s")
    if options.replay:
        print(what_is_left(rows))
    problems = [*failures, *(problem for row in rows if (problem := row.problem()))]
    sys.exit("\n".join(problems) or None)


if __name__ == "__main__":
    main()
