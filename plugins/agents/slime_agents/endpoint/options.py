"""Options of an agent program."""

from __future__ import annotations

import shlex
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from slime.config.paths import resolve
from slime.errors import SlimeError, nearest
from slime_agents.endpoint.forms import STRUCTURED
from slime_agents.tools.named import coroutine_function

_WHERE = "rollout.program.options"
_OF_SHELL = {*"|&;<>$`(){}*?~\n"}
_NO_SCRIPT = ("-c", "-m")
"""Flags of interpreters behind which no file is run."""
_SCRIPTS = (".py", ".pyz", ".sh", ".js", ".mjs", ".rb", ".pl")
_PROGRAMS = ("python", "python3", "bash", "sh", "node", "npx", "uv", "uvx", "claude", "codex", "opencode")
"""What agents are often started with."""


@dataclass
class EndpointOptions:
    command: str = ""
    """The agent program: a command of the shell, started once for each attempt. OPENAI_BASE_URL, OPENAI_API_KEY,
    ANTHROPIC_BASE_URL and ANTHROPIC_API_KEY in its environment are of this attempt alone; SLIME_PROMPT is the prompt's
    last message, and its standard input has the whole task as one line of JSON. What it posts to SLIME_VERDICT_URL is
    its verdict, in place of the run's reward."""
    path: str = ""
    """In place of a command, an `async def run(task, endpoint)`: `FILE.py:FUNCTION` or `module:function`."""
    host: str = "127.0.0.1"
    """Address that the endpoint listens at, and that agents are told. Other hosts reach the first alone if it is the
    driver's own in their network."""
    memory_mb: int = 4096
    """MiB that the processes of one attempt's command may take together; with more they are killed, and the attempt has
    no value."""
    environment: list[str] = field(default_factory=list)
    """Variables of the environment that a command gets although they look like secrets. A function runs in the driver,
    and has all."""
    structured: str = "words"
    """What is done where a client asks for answers of a form, as JSON by a schema. `words`: the first message of the
    conversation says it to the policy. `unsaid`: the program's own prompts say it. `refuse`: status 400. The policy
    always samples freely, so that an answer may miss its form; a program that fails by that gets the reward 0."""
    parser: str | None = None
    """How calls of tools are written, as SGLang's `tool_call_parser` names it, or `name-json`. Empty: as the chat
    template writes them."""


def check(options: EndpointOptions) -> None:
    """Raises SlimeError: no agent or two are named, or a function is not there or of another form."""
    if bool(options.command) == bool(options.path):
        what = "two agent programs are named" if options.command else "no agent program is named"
        todo = f"Set {_WHERE}.command='python my_agent.py', or {_WHERE}.path=my_agent.py:run."
        raise SlimeError(what, where=_WHERE, todo=todo)
    if options.structured not in STRUCTURED:
        near = nearest(options.structured, STRUCTURED)
        todo = f"Did you mean '{near}'?" if near else f"Take one of {', '.join(STRUCTURED)}."
        raise SlimeError(f"'{options.structured}' is not known", where=f"{_WHERE}.structured", todo=todo)
    if options.path:
        coroutine_function(options.path, "task", "endpoint")
    else:
        check_command(str(options.command))  # `command=true` is a boolean of YAML


def check_command(command: str) -> None:
    """Raises SlimeError: the command's program, or the script that it is to run, is not here. Of one with more words of
    the shell than these nothing is said."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise SlimeError(f"{error}: {command}", where=f"{_WHERE}.command", todo="Close the quotation.") from error
    while words and (words[0] == "exec" or "=" in words[0]):
        words = words[1:]
    if not words or set(command) & _OF_SHELL:
        return
    program, *arguments = words
    if shutil.which(program) is None:
        near = nearest(program, _PROGRAMS)
        todo = f"Did you mean '{near}'?" if near else "Install it, or name its path."
        raise SlimeError(f"there is no program '{program}'", where=f"{_WHERE}.command", todo=todo)
    script = next((word for word in arguments if word in _NO_SCRIPT or Path(word).suffix in _SCRIPTS), "")
    try:
        resolve(script) if Path(script).suffix in _SCRIPTS else None
    except SlimeError as problem:
        raise problem.under(f"{_WHERE}.command") from problem
