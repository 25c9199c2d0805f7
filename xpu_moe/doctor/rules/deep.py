"""What `--deep` met: a torch that does not import, cards that fail in its hands, a child that did not come back."""

from __future__ import annotations

from typing import Any

from xpu_moe.doctor.rules.base import Context, Row, Rule
from xpu_moe.doctor.text import shown

Hit = dict[str, Any]


def _torch(context: Context) -> Hit | None:
    error = context.facts.deep_failed.get("torch")
    if not error:
        return None
    version = context.package("torch")
    return {"error": shown(error, 300), "wanted": f"torch=={version}" if version else "torch"}


def _cards(context: Context) -> Hit | None:
    error = context.facts.deep_failed.get("cards")
    return {"error": shown(error, 300)} if error else None


def _ended(context: Context) -> Hit | None:
    """Neither "done", nor absent."""
    ended = context.facts.deep
    return {"ended": shown(ended)} if ended and ended != "done" else None


RULE = Rule(
    "torch or a card that fails when it is used",
    "Said by `--deep` alone, whose child imports torch and computes on each card.",
    (
        Row(
            "deep.torch", "error", "python.packages.torch",
            "torch is installed and does not import",
            "No engine starts with it: {error}.",
            "take the environment that scripts/serve_minimax.sh makes: .venv/bin/python -m xpu_moe.doctor --deep; or "
            "python -m pip install --force-reinstall '{wanted}' from the index it came from",
            "the child of --deep", _torch,
        ),
        Row(
            "deep.cards", "error", "gpus",
            "torch fails on a card",
            "The first product on it ended with: {error}.",
            "dmesg | python -m xpu_moe.launch explain-log -; restart the machine if a card hangs",
            "the child of --deep", _cards,
        ),
        Row(
            "deep.ended", "error", "deep",
            "the child of --deep did not come back: {ended}",
            "torch, the driver or a card crashed or hung in it, and would in an engine.",
            "python -X faulthandler -m xpu_moe.doctor.deep shows where; dmesg | python -m xpu_moe.launch explain-log -",
            "the child of --deep", _ended,
        ),
    ),
)  # fmt: skip
