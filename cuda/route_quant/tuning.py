"""Launch choices of the route + quant kernel by the number of tokens: data, measured, in one place."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Choice:
    """For up to `tokens` tokens: `unroll` runs of groups a warp, `warps` a block; `programmatic`: the start of the
    launch overlaps the end of the kernel before; `spread` s: one block in 2^s routes (0: those come first)."""

    tokens: int
    unroll: int
    programmatic: bool
    source: str
    warps: int = 4
    spread: int = 0


_SWEEP = "H200, 2026-11-29, graph of copies, us"
TABLE = (
    Choice(704, 2, True, f"{_SWEEP}: M 64 1.33 (unroll 1 1.44), M 640 2.34 (3.50)"),
    Choice(1408, 1, True, f"{_SWEEP}: M 1024 3.11 (unroll 2 4.57), M 1280 3.89 (4.83)"),
    Choice(1792, 3, True, f"{_SWEEP}: M 1536 4.13 (unroll 1 4.63, 2 4.43)"),
    Choice(3072, 2, True, f"{_SWEEP}: M 2048 5.62 (unroll 1 6.10), M 3072 9.92 (10.22)"),
    Choice(1 << 62, 2, True, f"{_SWEEP}: M 4096 12.7 (routing first 13.2)", spread=2),
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
