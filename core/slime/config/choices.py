"""What keys with a fixed set of values may be; documented where the schema uses them."""

from __future__ import annotations

import enum


class Init(enum.Enum):
    checkpoint = "checkpoint"
    random = "random"


class Device(enum.Enum):
    cpu = "cpu"
    cuda = "cuda"


class Placement(enum.Enum):
    colocated = "colocated"
    disaggregated = "disaggregated"


class Role(enum.Enum):
    regular = "regular"
    prefill = "prefill"
    decode = "decode"


class Publish(enum.Enum):
    retract = "retract"
    keep = "keep"
    abort = "abort"


Surplus = enum.Enum("Surplus", ["continue", "finished", "drop"])  # one name is a keyword of Python


class Resume(enum.Enum):
    auto = "auto"
    never = "never"
    must = "must"
    restart = "restart"


class KlEstimator(enum.Enum):
    k1 = "k1"
    k2 = "k2"
    k3 = "k3"
    low_var_kl = "low_var_kl"


class KlIn(enum.Enum):
    loss = "loss"
    reward = "reward"


class ControlTokens(enum.Enum):
    refuse = "refuse"
    skip = "skip"
    allow = "allow"


class Repeated(enum.Enum):
    keep = "keep"
    once = "once"


class LossMean(enum.Enum):
    token = "token"
    sample = "sample"
    constant = "constant"


class Importance(enum.Enum):
    truncate = "truncate"
    mask = "mask"


class ImportanceTokens(enum.Enum):
    stale = "stale"
    all = "all"


class LrDecay(enum.Enum):
    constant = "constant"
    linear = "linear"
    cosine = "cosine"
