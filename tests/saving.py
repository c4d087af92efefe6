"""Checkpoints of known content, whose parts all depend on the step."""

from slime.digest import DigestingFile
from slime_testing.patience import Patience


def content(step):
    """What `save` writes for a step: names, sizes and bytes all depend on it."""
    return {"model/shard-0.bin": bytes([step % 251]) * (1000 + step), "model/common.pt": str(step).encode() * 50}


def save(store, step):
    """As a run saves: the trainers know the digests of their shards, the other files are read for theirs."""
    with store.saving(step, {"step": step}) as staging:
        (staging.path / "model").mkdir()
        for name, data in content(step).items():
            with DigestingFile(staging.path / name) as file:
                file.write(data)
            if "shard" in name:
                staging.written[name] = file.facts


def assert_holds(checkpoint, step):
    assert checkpoint.step == step
    assert checkpoint.driver_state() == {"step": step}
    assert all((checkpoint.path / name).read_bytes() == data for name, data in content(step).items())


def comes_to_hold(folder, *names):
    """Whether a folder has these checkpoints and soon nothing else: a thread removes what has no name any more."""
    has_names = sorted(path.name for path in folder.glob("step-*")) == sorted(names)
    return has_names and Patience(30, list).wait_for(lambda: len([*folder.iterdir()]) == len(names))
