"""Log-probs of sampled tokens, engine against trainer, in bf16 on one GPU: every family, at its real head sizes.

    python benchmarks/generation.py [MODEL...]

Models are cut from published config.json files (see `slime.testing.on_gpu`) and served by stock SGLang, all at once.
Differences are in nats: mean, 90 % of the tokens, and largest. "Rounding" is what one side's costs: the trainer in bf16
against itself in fp32, mean and 95 % of the tokens. Both sides' may cost twice that, or the exit code is 1. Where the
engine chooses `index_topk` keys, by scores in fp8, the trainer does so too; "own keys" is the mean had it chosen by
scores in bf16, as in training, "control" had it attended to all keys.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from machine import conditions

from slime.testing.on_gpu import compare_on_gpu
from slime_plugin_mimo import hf

FAMILIES = Path(__file__).resolve().parents[1] / "plugins/models"
MODELS = (
    "glm4/GLM-4-9B-0414",
    "glm4/GLM-4.5-Air",
    "glm4/GLM-4.7-Flash",
    "deepseek-v3/DeepSeek-R1",
    "deepseek-v3/DeepSeek-V3.2",
    "glm5/GLM-5.2",
    "qwen3/Qwen3-4B",
    "qwen3/Qwen3-30B-A3B",
    "mimo/MiMo-7B-RL",
)


def main() -> None:
    wanted = sys.argv[1:] or [model.partition("/")[2] for model in MODELS]
    models = [model.partition("/") for model in MODELS]
    published = [FAMILIES / plugin / f"tests/hub/{name}.json" for plugin, _, name in models if name in wanted]
    hf.register()
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="generation-") as scratch:
        found = compare_on_gpu(published, Path(scratch))
    failures = [
        f"{path.stem}: {error}" for path, one in zip(published, found, strict=True) if (error := one.exception())
    ]
    rows = [row for one in found if not one.exception() for row in one.result()]
    print(f"{conditions()}\n")
    print("| family | cut from | tokens | mean | 90 % | max | rounding: mean | 95 % | own keys | control |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for row in rows:
        name = f"{row.model} {row.sequences}".strip()
        others = " | ".join("" if value is None else f"{value:.4f}" for value in (row.own_keys, row.control))
        apart = f"{row.mean:.4f} | {row.high:.3f} | {row.max:.3f} | {row.rounding:.4f} | {row.high_rounding:.3f}"
        print(f"| {row.family} | {name} | {row.num_tokens} | {apart} | {others} |")
    print(f"{time.perf_counter() - start:.0f} s")
    problems = [*failures, *(problem for row in rows if (problem := row.problem()))]
    sys.exit("\n".join(problems) or None)


if __name__ == "__main__":
    main()
