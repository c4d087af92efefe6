"""Which variables of the environment a worker gets: all but those that may be somebody's keys."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

_SECRET_NAME = re.compile(
    r"(^|_)(AUTH|COOKIE|CREDS?|DSN|JWT|KEYTAB|NETRC|PAT|PASS|PASSPHRASE|PRIVATE|PWD?)(_|$)"
    r"|(KEY|TOKEN)S?(_|$)|CREDENTIAL|PASSW|SECRET",
    re.IGNORECASE,
)
_HARMLESS = ("PWD", "OLDPWD", "RAY_AUTH_MODE")
_ADDRESS_WITH_PASSWORD = re.compile(r"://[^/\s@]*:[^/\s@]+@")


def split(environment: Mapping[str, str], wanted: Collection[str]) -> tuple[dict[str, str], list[str]]:
    """What a worker gets, and the names of what is withheld from it.

    A list of what is allowed would have to name each proxy, library path and cache that some code needs. So a
    variable is withheld if it looks like a secret: by a word of its name, or by a password in an address.

    Args:
        environment: name -> value.
        wanted: names that it gets in any case (`Pool`'s `wanted`).
    """
    withheld = [name for name, value in environment.items() if name not in wanted and _looks_secret(name, value)]
    return {name: value for name, value in environment.items() if name not in withheld}, sorted(withheld)


def _looks_secret(name: str, value: str) -> bool:
    return name not in _HARMLESS and bool(_SECRET_NAME.search(name) or _ADDRESS_WITH_PASSWORD.search(value))
