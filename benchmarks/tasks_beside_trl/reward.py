"""For TRL: what examples/reward/my_reward.py is for slime."""


def score(completions, label, **columns):
    return [float((one[-1].get("content") or "").strip() == right) for one, right in zip(completions, label)]
