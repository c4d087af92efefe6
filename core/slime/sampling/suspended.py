"""How a program learns that its attempt goes on in a later step."""

from __future__ import annotations


class Suspended(BaseException):
    """The engines were told to abort: the attempt goes on in a later step. No program catches it by mistake."""
