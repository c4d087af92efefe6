"""What keys with a fixed set of values may be; documented where the schema uses them."""

from __future__ import annotations

from enum import StrEnum

Init = StrEnum("Init", ["checkpoint", "random"])
Device = StrEnum("Device", ["cpu", "cuda"])
Placement = StrEnum("Placement", ["colocated", "disaggregated"])
Role = StrEnum("Role", ["regular", "prefill", "decode"])
Publish = StrEnum("Publish", ["retract", "keep", "abort"])
Surplus = StrEnum("Surplus", ["continue", "finished", "drop"])
Resume = StrEnum("Resume", ["auto", "never", "must", "restart"])
KlEstimator = StrEnum("KlEstimator", ["k1", "k2", "k3", "low_var_kl"])
KlIn = StrEnum("KlIn", ["loss", "reward"])
ControlTokens = StrEnum("ControlTokens", ["refuse", "skip", "allow"])
Repeated = StrEnum("Repeated", ["keep", "once"])
LossMean = StrEnum("LossMean", ["token", "sample", "constant"])
Importance = StrEnum("Importance", ["truncate", "mask"])
ImportanceTokens = StrEnum("ImportanceTokens", ["stale", "all"])
LrDecay = StrEnum("LrDecay", ["constant", "linear", "cosine"])
