"""Intel's current driver, fetched once for all tests of the session."""

from tests.esimd.nullcard.on_card import driver

__all__ = ["driver"]
