"""`slime plan` on one screen: what somebody wants to know before the run starts."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping

from slime.compose.compose import Composed
from slime.plan.model import read_model
from slime.plan.report import layout, reason_unknown
from slime.plan.summary import summary
from slime.plugins import Plugins
from slime.printable import printable

WIDTH, LABEL = 100, 12
"""Columns."""
MAX_LINES = 2
"""Of a row."""
USUAL = {"filter": "none ", "buffer": "fifo "}
"""Rows that are left out where they begin so."""


def screen(composed: Composed, plugins: Plugins) -> str:
    """A row a subject; `report` has all of it."""
    assert not composed.problems, "a plan is made of a run that can start"
    model = read_model(composed, plugins)
    rows = {**summary(composed, model, plugins), "layout": layout(model.topology)}
    if composed.memory:
        rows |= composed.memory.brief()
    elif composed.cfg.cluster.on_gpus:
        rows["memory"] = f"not known: {reason_unknown(model, composed.cfg.cluster)}"
    for part in model.parts:
        rows |= part.brief()
    return "\n".join([*_lines(rows), "", "The same words with --all: every process, key and argument."])


def _lines(rows: Mapping[str, str]) -> list[str]:
    shown = {name: text for name, text in rows.items() if not (name in USUAL and text.startswith(USUAL[name]))}
    return [line for name, text in shown.items() for line in _row(name, text)]


def _row(name: str, text: str) -> list[str]:
    """Lines of 100 columns, at most two; paths are not broken."""
    margin = " " * LABEL
    return textwrap.wrap(
        printable(text),
        WIDTH,
        initial_indent=f"{name:<{LABEL - 1}} ",
        subsequent_indent=margin,
        max_lines=MAX_LINES,
        placeholder=" ...",
        break_long_words=False,
        break_on_hyphens=False,
    )
