"""Main program of both prompt sets."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path


def main(prompt_set: str, rows: Mapping[str, Sequence[object]]) -> None:
    """The program: write `<prompt_set>-<name>.jsonl` into `--out` for every name of `rows`."""
    parser = argparse.ArgumentParser(description=f"Write the prompt set {prompt_set}.")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    folder = parser.parse_args().out
    folder.mkdir(parents=True, exist_ok=True)
    for name, found in rows.items():
        text = "".join(json.dumps(row) + "\n" for row in found)
        (folder / f"{prompt_set}-{name}.jsonl").write_text(text, encoding="utf-8", newline="\n")
