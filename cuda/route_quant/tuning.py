"""Launch choices of the route + quant kernel by the number of tokens: data, measured, in one place."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Choice:
    """For up to `tokens` tokens: `unroll` runs of groups a warp, `warps` a block; `programmatic`: the start of the
    launch overlaps the end of the kernel before."""

    tokens: int
    unroll: int
    programmatic: bool
    source: str
    warps: int = 4


TABLE = (
    Choice(256, 2, True, "to be measured"),
    Choice(1024, 1, True, "to be measured"),
    Choice(1 << 62, 2, True, "to be measured"),
)


def choice(tokens: int) -> Choice:
    """The row that serves `tokens`."""
    return next(row for row in TABLE if tokens <= row.tokens)


def describe() -> str:
    """The table in a sentence, for reasons and reports."""

    def text(row: Choice) -> str:
        overlap = ", programmatic launch" if row.programmatic else ""
        return f"unroll {row.unroll}, {row.warps} warps{overlap}"

    parts = (f"M <= {row.tokens}: {text(row)}" for row in TABLE[:-1])
    return "; ".join((*parts, f"above: {text(TABLE[-1])}"))
