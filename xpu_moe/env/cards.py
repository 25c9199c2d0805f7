"""`--cards 0,1,2,3`: the indices of cards, as every tool of ours takes them."""

from __future__ import annotations


def indices(text: str) -> tuple[int, ...]:
    """The cards of a comma-separated list, in its order. ValueError for what is no index, or a card named twice."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdecimal() and len(part) <= 4 for part in parts):
        raise ValueError(f"--cards: got {text!r}, wanted indices from 0 on, comma separated, such as 0,1,2,3")
    found = tuple(map(int, parts))
    if len(set(found)) < len(found):
        once = ",".join(map(str, dict.fromkeys(found)))
        raise ValueError(f"--cards: got {text!r}, wanted every card once: {once}")
    return found
