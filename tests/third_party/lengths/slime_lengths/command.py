"""What `slime lengths RUN` does."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from statistics import mean

from slime.arguments import ArgumentParser
from slime.errors import SlimeError


def add_arguments(parser: ArgumentParser) -> None:
    parser.description = "Show the mean number of tokens in the responses of each step."
    parser.add_argument("run", type=Path, help="run directory")


def run(args: Namespace) -> None:
    from slime_observers.samples.rows import read_samples

    files = sorted((args.run / "samples").glob("step-*.jsonl"))
    if not files:
        raise SlimeError("there are no samples", where=str(args.run), todo="Name a run directory with samples.")
    for file in files:
        print(f"{file.stem} {mean(row['num_tokens'] for row in read_samples(file)):.1f}")
