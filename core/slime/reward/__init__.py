"""Rewards: judged in worker processes that can be killed, answered as verdicts."""
