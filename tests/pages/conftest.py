"""Fixtures of the tests of pages."""

from tests.pages.samples import jobs

__all__ = ["jobs"]
