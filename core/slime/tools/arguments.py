"""The parser of verbs that take arguments of their own."""

from __future__ import annotations

import argparse
from typing import NoReturn

from slime.errors import SlimeError


class ArgumentParser(argparse.ArgumentParser):
    """Of the standard library's, but what is wrong is a line as everywhere."""

    def error(self, message: str) -> NoReturn:
        """Raise for a word that does not fit.

        Raises:
            SlimeError: always.
        """
        raise SlimeError(message, where=self.prog, todo=f"'{self.prog} --help' says what it takes.")
