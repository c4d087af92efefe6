"""Fixtures that tests of several folders use."""

from slime.testing.site import site

__all__ = ["site"]
