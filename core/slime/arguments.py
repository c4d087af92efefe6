"""The parser of every verb's arguments."""

from __future__ import annotations

import argparse
from typing import Any, NoReturn

from slime.errors import SlimeError, did_you_mean

KEYS = "keys"
"""Name of the words that set keys among the parsed arguments."""
RUN_FILE = (".yaml", ".yml")
"""What the name of a run file ends with."""
_ABOUT_KEYS = """\
  my.yaml               a run file: any of these as YAML (docs/run-file.md); what stands later wins
  +model=, +cluster=    what is trained, and on which machines
  task=, reward=, ...   other choices; 'slime --help' lists what is installed
  key=value             any key, for instance rollout.prompts_per_step=64; 'slime keys rollout' explains them
"""


def is_run_file(word: str) -> bool:
    """Whether a word of the command line names a file of choices and keys."""
    return "=" not in word and word.endswith(RUN_FILE)


class ArgumentParser(argparse.ArgumentParser):
    """The standard library's, with the keys of a run, and with errors of one line."""

    takes_keys = False

    def __init__(self, **keywords: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, **keywords)

    def add_keys(self, help: str = "what is set; +model= and +cluster= are needed", more: str = _ABOUT_KEYS) -> None:
        """Take words such as `key=value` and `+group=option` too, before and after flags: `args.keys`. `help` is a line
        about them, `more` comes below the flags."""
        self.takes_keys, self.allow_abbrev, self.epilog = True, False, more
        self.add_argument(KEYS, nargs="*", default=[], metavar="key=value", help=help)

    @property
    def flags(self) -> list[str]:
        """All of them, such as `--help`."""
        return [word for action in self._actions for word in action.option_strings if word.startswith("--")]

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            kind = f"{action.metavar} " if isinstance(action.metavar, str) else ""
            where = " ".join([self.prog, *action.option_strings[-1:]])
            raise SlimeError(f"there is no {kind}'{value}'", where=where, todo=did_you_mean(value, action.choices))

    def error(self, message: str) -> NoReturn:
        """Raise a SlimeError for a word that does not fit."""
        raise SlimeError(message, where=self.prog, todo=f"'{self.prog} --help' says what it takes.")
