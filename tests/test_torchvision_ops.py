import subprocess
import sys

PROGRAM = """
from slime import torchvision_ops
torchvision_ops.ensure()
torchvision_ops.ensure()
import torch
from torchvision.ops import box_area
assert box_area(torch.tensor([[0.0, 0.0, 2.0, 3.0]])).tolist() == [6.0]
assert torch.ops.torchvision.nms is not None
"""


def test_torchvision_imports_beside_any_torch():
    """In a process of its own: here somebody may have imported it already."""
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, timeout=60)
