"""`python -m slime.rollout.launcher ARGS`: one SGLang server that ends when its parent ends.

SGLang spawns its workers from the main module, so what this module does at import happens in all of them.
"""

from __future__ import annotations

import sys

from slime import torchvision_ops
from slime.rollout.lifeline import die_with_parent


def main() -> None:
    from sglang.srt.entrypoints.http_server import launch_server
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import prepare_server_args

    load_plugins()
    launch_server(prepare_server_args(sys.argv[1:]))


if __name__ == "__main__":
    die_with_parent()
torchvision_ops.ensure()
if __name__ == "__main__":
    main()
