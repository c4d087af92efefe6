"""Variables of a worker's environment: all but those that may be somebody's keys."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

_SECRET_NAME = re.compile(
    r"(^|_)(AUTH|BEARER|COOKIES?|CREDS?|DSN|JWT|KEYTAB|KUBECONFIG|NETRC|PAT|PASS|PASSPHRASE|PRIVATE|PWD?|SAS|SESSION|SIG"
    r"|SK|WEBHOOKS?)(_|$)|WEBHOOK_?URL|CREDENTIAL|PASSW|PASSFILE|SECRET|SIGNATURE",
    re.IGNORECASE,
)
_KEY_NAME = re.compile(r"(KEY|TOKEN)S?(_|$)", re.IGNORECASE)
_COUNT = re.compile(r"\d{1,9}")
"""A value that is no key: `MAX_TOKENS=4096`."""
_HARMLESS_NAME = re.compile(
    r"PWD|OLDPWD|RAY_AUTH_MODE|DESKTOP_SESSION|TERM_SESSION_ID|XDG_SESSION_(ID|TYPE|CLASS|DESKTOP|PATH)"
)
_ADDRESS_OF_SOMEBODY = re.compile(
    r"://[^/\s@]*:[^/\s@]*@"  # name and password
    r"|(?<!ssh)(?<!sftp)(?<!rsync)://[^/\s@]+@",  # a token in place of the name, where the scheme allows one
    re.IGNORECASE,
)
_SECRET_FIELD = re.compile(
    r"(?:^|[?&;\s])[\w.-]*"
    r"(?:(?<![a-z])sig|signature|credential|jwt|passw(?:or)?d|secret|token|(?<![a-z])pwd"
    r"|(?:access|account|api|private|secret|shared|signing)[_-]?key(?:[_-]?id)?|(?<=[?&])key)=[^\s&;]",
    re.IGNORECASE,
)
"""A secret in a query, a connection string or the arguments of a command: `?X-Amz-Signature=..`, `;AccountKey=..`."""
_KEY = re.compile(
    r"(?<![\w/.-])(?:"
    r"[spr]k[-_](?=[\w-]*\d)[\w-]{20,}"  # OpenAI, Anthropic, Stripe
    r"|gh[opsur]_\w{20,}|github_pat_\w{20,}|glpat-[\w-]{20,}"
    r"|hf_[A-Za-z0-9]{30,}|nvapi-[\w-]{20,}|r8_[A-Za-z0-9]{30,}"
    r"|A[KS]IA[A-Z0-9]{16}|AIza[\w-]{35}|ya29\.[\w-]{20,}"
    r"|xox[a-z]-[\w-]{10,}|xapp-[\w-]{10,}"
    r"|npm_[A-Za-z0-9]{30,}|pypi-[\w-]{30,}|dop_v1_\w{30,}|SG\.[\w-]{16,}\.[\w-]{16,}"
    r"|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"  # a JSON web token
    r"|(?:Basic|Bearer) [\w.~+/=-]{8,}"
    r"|-----BEGIN (?!CERTIFICATE|PUBLIC)"
    r")"
    r"|://hooks\.slack\.com/|://discord(?:app)?\.com/api/webhooks/"
)
"""Keys by the beginnings that services give them so that they are found."""


def split(environment: Mapping[str, str], wanted: Collection[str]) -> tuple[dict[str, str], list[str]]:
    """The variables of a worker, and the names of those that are withheld from it, but for the `wanted` ones.

    A variable looks like a secret by a word of its name, by a password, token or signature in an address, or by a value
    that begins as a known service's keys do. (A list of allowed names would have to know each proxy, library path and
    cache.) A key without such a beginning, in a variable with a harmless name, is not known.
    """
    withheld = [name for name, value in environment.items() if name not in wanted and _looks_secret(name, value)]
    return {name: value for name, value in environment.items() if name not in withheld}, sorted(withheld)


def _looks_secret(name: str, value: str) -> bool:
    if _HARMLESS_NAME.fullmatch(name):
        return False
    if _SECRET_NAME.search(name) or (_KEY_NAME.search(name) and not _COUNT.fullmatch(value)):
        return True
    return any(shape.search(value) for shape in (_ADDRESS_OF_SOMEBODY, _SECRET_FIELD, _KEY))
