"""The reward of `against_verl.py`, in a file that verl's processes load by its path: it imports nothing of slime."""

from __future__ import annotations

import re

NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def compute_score(data_source: str, solution_str: str, ground_truth: str, extra_info: object = None) -> float:
    """1 where the last number of the response is the label, else 0."""
    found = NUMBER.findall(solution_str.replace(",", ""))
    return float(bool(found) and float(found[-1]) == float(ground_truth))
