"""The conditions of a measurement, as one line for its table."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from datetime import date
from pathlib import Path

import torch


def conditions() -> str:
    """Date, commit, devices and versions."""
    root = Path(__file__).parent
    describe = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    done = subprocess.run(describe, cwd=root, capture_output=True, text=True) if shutil.which("git") else None
    commit = (done.stdout.strip() if done else "") or "unknown"
    devices = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    where = f"{len(devices)} x {devices[0]}" if devices else f"{os.cpu_count()} CPU cores"
    return f"{date.today()}, commit {commit}, {where}, {platform.machine()}, torch {torch.__version__}"
