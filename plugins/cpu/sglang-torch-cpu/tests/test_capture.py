"""What SGLang notes of tokens is kept in memory that a machine without GPUs has."""

import ast
import inspect
from pathlib import Path
from types import SimpleNamespace

import torch
from sglang.srt.state_capturer.base import BaseHostCache

from sglang_torch_cpu.capture import make_host_cache


def test_the_cache_has_what_the_stock_one_has() -> None:
    cache = SimpleNamespace()
    make_host_cache(cache, num_tokens=5, num_layers=3, topk_size=2, name="routed_experts")
    # Of the source: where an engine was made in this process, the class has the other constructor already.
    source = ast.parse(Path(inspect.getfile(BaseHostCache)).read_text())
    [stock] = (node for node in source.body if isinstance(node, ast.ClassDef) and node.name == BaseHostCache.__name__)
    fields = {node.attr for node in ast.walk(stock) if isinstance(node, ast.Attribute)}
    assert vars(cache).keys() <= fields, "the constructor that is replaced sets other fields"
    assert {"buffer", "num_tokens", "num_layers", "topk_size", "name"} == vars(cache).keys()
    assert (tuple(cache.buffer.shape), cache.buffer.dtype) == ((5, 3, 2), torch.int32)
    assert not cache.buffer.any()
