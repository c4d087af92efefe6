"""A process group of this process alone, for tests that need Megatron's or torch's collectives but no second rank."""

from collections.abc import Iterator

import pytest
import torch.distributed as dist


@pytest.fixture
def lone_group() -> Iterator[dist.ProcessGroup]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()
