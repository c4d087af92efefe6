"""SGLang finds the distribution by itself, and serves with it alone: no other plugin is loaded here."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

import pytest
import torch

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="it does nothing where CUDA is"),
    pytest.mark.slow,  # each test has a process import SGLang
]
ALONE = {**os.environ, "SGLANG_PLUGINS": "torch_cpu"}
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "vocab_size": 160,
    "torch_dtype": "float32",
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(MODEL))
    return folder


HOOKED = """
import multiprocessing, os, sys
from types import SimpleNamespace
import torch
import sglang_torch_cpu
from sglang_torch_cpu.deterministic import murmur_hash32
from sglang.srt.platforms import current_platform
from sglang.srt.plugins import load_plugins
sglang_torch_cpu.quick_start({"model_path": sys.argv[1]})
load_plugins()
from sglang.srt.entrypoints import engine
from sglang.srt.layers import sampler
from sglang.srt.managers.data_parallel_controller import DataParallelController
from sglang.srt.server_args import ServerArgs
print(type(current_platform).__module__)
numbers = torch.arange(3)
print(torch.equal(sampler.murmur_hash32(numbers, numbers, numbers), murmur_hash32(numbers, numbers, numbers)))
sleeps = SimpleNamespace(soft_watchdog=SimpleNamespace(feed=int), recv_from_tokenizer=SimpleNamespace(poll=sys.exit))
try:
    DataParallelController.event_loop(sleeps)
except SystemExit as polled:
    print("sleeps for", polled.code, "ms")
engine._set_envs_and_config(ServerArgs(model_path=sys.argv[1], device="cpu"))
print(multiprocessing.get_start_method(), "qwen3" in os.environ["SGLANG_DISABLED_MODEL_ARCHS"].split(","))
"""


def test_sglang_takes_the_platform_and_the_hooks(model: Path) -> None:
    command = [sys.executable, "-c", HOOKED, str(model)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=ALONE)
    assert done.stdout.splitlines() == [
        "sglang_torch_cpu.platform",
        "True",
        "sleeps for 1000 ms",
        "fork True",
    ]


def on_gpus(call: str) -> str:
    code = (
        f"import torch; torch.cuda.is_available = lambda: True; import sglang_torch_cpu; print(sglang_torch_cpu.{call})"
    )
    code += "; from sglang.srt.plugins.hook_registry import HookRegistry; print(dict(HookRegistry._hooks))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout


@pytest.mark.parametrize("call", ["activate()", "install()"])
def test_a_machine_with_gpus_is_left_to_sglang(call: str) -> None:
    assert on_gpus(call) == "None\n{}\n"


@pytest.fixture
def port() -> Iterator[int]:
    """Nobody is given it meanwhile, but a server may listen there."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield int(holder.getsockname()[1])


def test_stock_sglang_serves_on_a_cpu(model: Path, tmp_path: Path, port: int) -> None:
    """SGLang's own command, deterministic: two requests of one prompt and seed get the same tokens in one batch."""
    words = [
        "--device",
        "cpu",
        "--attention-backend",
        "torch_native",
        "--load-format",
        "dummy",
        "--skip-tokenizer-init",
    ]
    words += ["--enable-deterministic-inference", "--disable-radix-cache", "--mem-fraction-static", "0.1"]
    words += ["--max-total-tokens", "512", "--port", str(port), "--model-path", str(model)]
    with (tmp_path / "log").open("wb") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "sglang.launch_server", *words],
            stdout=log,
            stderr=log,
            env=ALONE | {"TORCHDYNAMO_DISABLE": "1"},  # or each of its processes imports torch's compiler
            start_new_session=True,
        )
    try:
        asked = {
            "input_ids": [[5, 6, 7], [5, 6, 7]],
            "sampling_params": {"max_new_tokens": 8, "sampling_seed": 3, "ignore_eos": True},
        }
        answers = ask(server, f"http://127.0.0.1:{port}", asked)
        one, other = (answer["output_ids"] for answer in answers)
        assert len(one) == 8
        assert one == other
    finally:
        os.killpg(server.pid, 9)
        server.wait()


def ask(server: subprocess.Popen[bytes], url: str, asked: dict[str, Any]) -> list[dict[str, Any]]:
    """The answer, as soon as the server is up."""
    request = Request(f"{url}/generate", json.dumps(asked).encode(), {"Content-Type": "application/json"})
    deadline = time.monotonic() + 1000  # of a machine that other programs keep busy; pytest's own limit comes before
    while time.monotonic() < deadline:
        assert server.poll() is None, "it ended"
        try:
            with urlopen(request, timeout=120) as answer:
                found: list[dict[str, Any]] = json.load(answer)
                return found
        except URLError:
            time.sleep(0.5)
    raise AssertionError("it is not up")
