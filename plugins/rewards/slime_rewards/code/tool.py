"""The tool `python` of the program `tools`: what a model writes runs where the reward `code` runs answers.

`rollout.program.options.functions=[slime_rewards.code.tool:python]`
"""

from __future__ import annotations

from slime_rewards.code.sandbox import Spec, run

CPU_S, MEMORY_MB, OUTPUT_BYTES = 4, 512, 1 << 16
"""Limits of one call, which the program `tools` bounds by the clock (`rollout.program.options.timeout_s`)."""
_TELLS = """
import sys, traceback
try:
    exec(compile({code!r}, "program.py", "exec"), {{"__name__": "__main__"}})
except Exception as error:
    sys.stdout.flush()
    traceback.print_exception(error.with_traceback(error.__traceback__.tb_next), file=sys.stdout)
"""
"""Runs the model's program, and prints an exception as Python does, less the frames that are not the model's."""


def python(code: str) -> str:
    """Run a Python program and return what it prints. It has no files, no network and no memory of earlier calls.

    Args:
        code: The program. Print what you want to see.
    """
    text = code.encode(errors="replace").decode()
    ended = run(Spec(_TELLS.format(code=text), cpu_s=CPU_S, memory_mb=MEMORY_MB, output_bytes=OUTPUT_BYTES))
    return ended.output + (f"\nerror: {ended.fault}" if ended.fault else "")
