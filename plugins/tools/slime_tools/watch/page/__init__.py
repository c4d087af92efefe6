"""The page: one HTML file without any request to elsewhere, whether it is live or frozen.

uPlot 1.6.32 draws the plots (MIT, `uplot/LICENSE`). Its files are those of the package `uplot` of the npm registry,
byte for byte; `UPLOT` has their digests, which a test compares.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from importlib.resources import files
from typing import Any

UPLOT = {
    "uplot/uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uplot/uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
}
"""SHA-256 by file."""
STYLES = ("uplot/uPlot.min.css", "page.css")
PARTS = ("dom", "settings", "plots", "lines", "save", "plot", "diff", "samples", "head", "runs", "page")
SCRIPTS = ("uplot/uPlot.iife.min.js", *(f"{part}.js" for part in PARTS))


def page(title: str, frozen: dict[str, Any] | None = None) -> tuple[str, str]:
    """The page, and its Content-Security-Policy, which the page carries too.

    The browser runs and styles with what the page brings, by digest, and nothing else: no script, picture or form that
    a sample's text might contain. Text of a run reaches the page as JSON, and the document as text nodes.

    Args:
        frozen: all that the page shows; None: it asks the server that it came from.
    """
    style, script = ("\n".join(_read(name) for name in names) for names in (STYLES, SCRIPTS))
    policy = "; ".join(
        [
            "default-src 'none'",
            f"script-src '{_digest(script)}'",
            f"style-src '{_digest(style)}'",
            *["connect-src 'self'"] * (frozen is None),
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )
    data = "null" if frozen is None else json.dumps(frozen).replace("<", "\\u003c")
    parts = {"TITLE": html.escape(title, quote=False), "POLICY": policy, "STYLE": style, "DATA": data, "SCRIPT": script}
    return _filled(_read("page.html"), parts), policy


def _filled(template: str, parts: dict[str, str]) -> str:
    """Each part in one piece: what a part contains is no place for another."""
    before, *rest = template.split("{{")
    pieces = [before]
    for each in rest:
        name, _, after = each.partition("}}")
        pieces += [parts[name], after]
    return "".join(pieces)


def _digest(content: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}"


def _read(name: str) -> str:
    return files(__name__).joinpath(name).read_text(encoding="utf-8")
