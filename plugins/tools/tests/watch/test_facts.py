"""What configs of runs are compared by."""

import pytest

from slime import run_config
from slime.errors import SlimeError
from slime_tools.watch import facts

CONFIG = """\
run: {seed: 7, name: %s, dir: runs}
train: {lr: 1.0e-06, when: 2026-11-30, on: 'yes', ids: [1, 2], name: null}
weights: {path: runs/%s/weights}
data: {hash: %s}
cluster: {environment: {TOKEN: secret}}
"""


def written(folder, name, digest="a" * 64, seed=7):
    (folder / name).mkdir()
    (folder / name / "config.yaml").write_text((CONFIG % (name, name, digest)).replace("seed: 7", f"seed: {seed}"))
    return folder / name


def test_a_config_is_read_as_a_run_reads_it(tmp_path):
    folder = written(tmp_path, "a")
    assert facts.read_config(folder) == run_config.shown_config(run_config.read_config(folder / "config.yaml"))
    (folder / "config.yaml").write_text("[")
    with pytest.raises(SlimeError, match="this is not the config of a run"):
        facts.read_config(folder)


def test_folder_and_digests_are_no_difference_and_seeds_are_one_but_in_their_group(tmp_path):
    one, other = written(tmp_path, "a"), written(tmp_path, "b", digest="b" * 64)
    seed = written(tmp_path, "c", seed=8)
    compared = [facts.compared(facts.read_config(folder)) for folder in (one, other, seed)]
    assert compared[0] == compared[1] != compared[2]
    assert len({facts.but_for_its_seed(each) for each in compared}) == 1
    assert facts.but_for_its_seed({**compared[0], "train.lr": "1"}) != facts.but_for_its_seed(compared[0])
