"""Which rows of a file ask again what an earlier row asked."""

from __future__ import annotations

import json
from hashlib import blake2b

from slime.config.schema import DataConfig
from slime.data.rows import Row
from slime.errors import SlimeError


class FirstTime:
    """Whether no row before had a row's prompt and label; asked of each row of a set once, in the file's order.

    Args:
        data: names the columns.
    """

    def __init__(self, data: DataConfig) -> None:
        self._keys = [key for key in (data.prompt_key, data.label_key) if key is not None]
        self._seen: set[bytes] = set()

    def __call__(self, row: Row) -> bool:
        try:
            values = [row[key] for key in self._keys]
        except SlimeError:  # a column is missing: whoever checks the rows tells
            return True
        text = json.dumps(values, sort_keys=True, default=repr, ensure_ascii=False)
        num_seen = len(self._seen)
        self._seen.add(blake2b(text.encode(), digest_size=16).digest())
        return len(self._seen) > num_seen
