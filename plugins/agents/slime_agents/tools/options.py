"""Options of the programs `tools` and `function`."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class ToolsOptions:
    functions: list[str] = field(default_factory=list)
    """The tools: `FILE.py:FUNCTION` or `module:function`, each with types and a docstring that says what it is for."""
    max_turns: int = 8
    """Responses of a sample at most."""
    timeout_s: float = 5.0
    """Seconds that a call may take; then its worker is killed, and the model is told so."""
    num_workers: int = 32
    """Worker processes of the functions at most, one call each; they are started as calls need them."""
    memory_mb: int = 2048
    """MiB by which a worker, all it starts and its files in /dev/shm and TMPDIR may grow."""
    environment: list[str] = field(default_factory=list)
    """Variables of the environment that the functions get although they look like secrets."""
    max_result_chars: int = 4000
    """Of what a tool returns the model sees this many characters."""
    parser: str | None = None
    """How calls are written, as SGLang's `tool_call_parser` names it, or `name-json`. Empty: as the chat template
    writes them."""


@dataclass
class FunctionOptions:
    path: str = ""
    """`FILE.py:FUNCTION` or `module:function`: an `async def run(task, model)` as docs/writing-a-program.md says."""
