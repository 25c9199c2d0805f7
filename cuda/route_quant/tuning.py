"""Launch choices of the route + quant kernel by the number of tokens: data, measured, in one place."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Choice:
    """For up to `tokens` tokens: `unroll` runs of groups a warp, `programmatic` = overlap with the kernel before."""

    tokens: int
    unroll: int
    programmatic: bool
    source: str


TABLE = (
    Choice(256, 1, True, "to be measured"),
    Choice(2048, 1, False, "to be measured"),
    Choice(1 << 62, 2, False, "to be measured"),
)


def choice(tokens: int) -> Choice:
    """The row that serves `tokens`."""
    return next(row for row in TABLE if tokens <= row.tokens)


def describe() -> str:
    """The table in a sentence, for reasons and reports."""
    parts = (
        f"M <= {row.tokens}: unroll {row.unroll}{', programmatic launch' if row.programmatic else ''}"
        for row in TABLE[:-1]
    )
    last = TABLE[-1]
    return "; ".join((*parts, f"above: unroll {last.unroll}{', programmatic launch' if last.programmatic else ''}"))
