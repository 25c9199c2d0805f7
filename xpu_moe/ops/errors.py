"""The error of an argument that does not fit. Needs no torch: the dispatcher raises it as the operators do."""

from __future__ import annotations


class BadArgument(ValueError):
    """An argument that an operator refuses: its name, what was got and what was wanted."""
