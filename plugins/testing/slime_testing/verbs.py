"""The contract test of a verb, to be called from a plugin's own tests.

from slime_testing.verbs import check_verb

def test_contract() -> None:
    check_verb("lengths")
"""

from __future__ import annotations

import re

from slime import plugins
from slime.contracts import Verb
from slime.errors import SlimeError
from slime.verbs import installed
from slime.verbs.strangers import read
from slime_testing.plugins import check_light

NAME = re.compile(r"[a-z][a-z-]*( (--)?[a-z][a-z-]*)?")
MAX_HELP = 90
"""Characters of a line of `slime --help`."""


def check_verb(name: str) -> None:
    """Assert that verb `name` is well installed: it can be called, says what it takes, and is quick until it runs.

    Raises:
        AssertionError: a part of the contract is broken; says which.
        SlimeError: no verb of that name is installed.
    """
    contribution = plugins.load().verbs.get(name)
    factory = installed.factories()[name]
    assert NAME.fullmatch(name), f"'{name}' is not one word, or two, of small letters and dashes"
    one_line = 0 < len(factory.help) <= MAX_HELP and "\n" not in factory.help and not factory.help.endswith(".")
    assert one_line, f"{factory.help!r} is not one line of at most {MAX_HELP} characters without a full stop"
    ask = f"from slime.verbs import installed\ninstalled.parser_of({name!r}, installed.load({name!r}))"
    check_light(contribution, ask)
    verb = installed.load(name)
    assert isinstance(verb, Verb), f"{factory.module} lacks add_arguments or run"
    assert installed.find(name.split(), [name]) == (name, []), f"'slime {name}' does not call it"
    parser = installed.parser_of(name, verb)
    assert parser.description, "its --help does not say what it does: add_arguments sets parser.description"
    try:
        read(parser, ["--no-such-flag"])
    except SlimeError:
        return
    raise AssertionError("it takes a flag that it does not know")
