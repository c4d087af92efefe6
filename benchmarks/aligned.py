"""Log-probs of sampled tokens, engine against trainer, with `model.batch_invariant` and without: gap and seconds.

    python benchmarks/aligned.py                       # GLM-4-9B's widths, 4 layers of random weights, one GPU, 150 s
    python benchmarks/aligned.py --experts --layers 2  # GLM-4.5-Air's, of which the first layer is dense
    python benchmarks/aligned.py FOLDER                # and the real model in FOLDER
    python benchmarks/aligned.py --device cpu --tiny   # a small GLM-4 in fp32
    python benchmarks/aligned.py --device cpu --tiny --bf16 --experts

One engine and one trainer a row, in the same precision; `tests/invariant.py` says what is asked and scored. The gap is
that of the sampled tokens, in nats: mean, largest, and the share of tokens that are not equal to the bit. Seconds are
of generation, of scoring, and of a forward and backward pass.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
import yaml
from machine import conditions

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from slime.config.hf import read_hf_config  # noqa: E402
from slime.config.schema import Device, SlimeConfig  # noqa: E402
from slime.net import LOOPBACK  # noqa: E402
from slime.topology.topology import read_topology  # noqa: E402
from slime_sglang.engine.driver.process import EngineProcess  # noqa: E402
from slime_testing.models import write_checkpoint  # noqa: E402
from slime_testing.ranks import run_ranks  # noqa: E402
from tests.invariant import NUM_MEASURED, Row, Sizes, measured  # noqa: E402
from tests.on_gpu import setup  # noqa: E402

ASSETS = ROOT / "plugins/models/glm4/slime_plugin_glm4/assets"
RANDOM = {False: {False: "GLM-4-9B-0414", True: "glm4-tiny"}, True: {False: "GLM-4.5-Air", True: "glm4-moe-tiny"}}
"""Models that get random weights, by whether they have experts and are tiny."""
REAL = Sizes(64, (40, 300, 700, 1000), 256)
SMALL = Sizes(8, (5, 20, 70), 24)


def cut(options: argparse.Namespace, scratch: Path) -> Path:
    """A folder with config.json of a model that has no weights yet."""
    name = RANDOM[options.experts][options.tiny]
    hf = read_hf_config(str(ASSETS / name)) | ({} if options.tiny else {"num_hidden_layers": options.layers})
    hf |= {"num_nextn_predict_layers": 0} if options.experts else {}  # engines have no place for what drafts
    (scratch / name).mkdir()
    (scratch / name / "config.json").write_text(json.dumps(hf))
    return scratch / name


def write_weights(folder: Path) -> None:
    """Random ones, in bf16."""
    config = (folder / "config.json").read_text()
    write_checkpoint(json.loads(config), folder, dtype=torch.bfloat16)
    (folder / "config.json").write_text(config)  # as it was, not as transformers writes it


def config(folder: Path, options: argparse.Namespace, sizes: Sizes, *, wanted: bool) -> SlimeConfig:
    """Of one trainer and one engine that has a share of the device, as engines of all rows run at once."""
    hf, device = read_hf_config(str(folder)), Device(options.device)
    longest = max(sizes.prompts) + 2 * sizes.answer
    fields = {"max_running_requests": sizes.requests, "cuda_graph_max_bs_decode": sizes.requests}
    fields |= {"max_total_tokens": 2 * sizes.requests * longest, "context_length": longest + 8}
    fields |= {"dtype": "bfloat16" if options.bf16 or device is Device.cuda else "float32"}
    fields |= {name: yaml.safe_load(value) for name, _, value in (each.partition("=") for each in options.engine)}
    cfg = setup(hf, folder, device, fields)
    cfg.model.path, cfg.model.batch_invariant = str(folder), wanted
    if not wanted and cfg.cluster.on_gpus:
        del cfg.rollout.sglang["attention_backend"]  # SGLang's own choice is what the other costs
    return cfg


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", metavar="FOLDER", help="with config.json and safetensors")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--bf16", action="store_true", help="on a CPU")
    parser.add_argument("--layers", type=int, default=4, help="of the cut")
    parser.add_argument("--experts", action="store_true", help="a mixture of experts has the random weights")
    parser.add_argument("--engine", nargs="*", default=[], metavar="FIELD=VALUE", help="of SGLang's ServerArgs")
    options = parser.parse_args()
    sizes, begin = SMALL if options.tiny else REAL, time.perf_counter()
    print(f"{conditions()}\n")
    head = "model", "batch-invariant", "tokens", "gap: mean", "max", "unequal", "generation, s", "scoring", "training"
    print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}", flush=True)
    with tempfile.TemporaryDirectory(prefix="aligned-") as made, ThreadPoolExecutor() as pool:
        scratch, engines = Path(made), list[tuple[SlimeConfig, EngineProcess, Path]]()
        random = cut(options, scratch)
        for folder in (random, *map(Path, options.folders)):
            for wanted in (True, False):
                cfg = config(folder, options, sizes, wanted=wanted)
                log = scratch / f"engine{len(engines)}.log"
                engines.append((cfg, EngineProcess(read_topology(cfg), host=LOOPBACK, log=log), folder))
        try:
            all_starting = [pool.submit(process.start) for _, process, _ in engines]
            write_weights(random)  # which no engine reads
            for starting, (cfg, process, folder) in zip(all_starting, engines, strict=True):
                starting.result()
                [found] = run_ranks(measured, 1, cfg, process.endpoint, sizes, NUM_MEASURED, timeout_s=300)
                row = Row(*found)
                gap = f"{row.num_tokens} | {row.mean:.1e} | {row.largest:.1e} | {row.unequal:.1%}"
                spent = f"{row.generation:.2f} | {row.scoring:.3f} | {row.training:.3f}"
                wanted = "yes" if cfg.model.batch_invariant else "no"
                print(f"| {folder.name} | {wanted} | {gap} | {spent} |", flush=True)
        except Exception:
            for log in sorted(scratch.glob("engine*.log")):
                sys.stderr.write(f"{log.name}\n{log.read_text()[-4000:]}\n")
            raise
        finally:
            for _, process, _ in engines:
                process.stop()
    print(f"\n{time.perf_counter() - begin:.0f} s")


if __name__ == "__main__":
    main()
