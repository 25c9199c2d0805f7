"""Secrets never reach a terminal, a log or a summary: every text that leaves the launcher goes through a Masker."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence

MASK = "***"
_WORDS = frozenset({"token", "key", "secret", "password", "passwd", "credential", "credentials", "apikey"})
# Shorter values would blank out half of every line (HF_TOKEN=1); by name they are masked all the same.
_SHORTEST = 4


def is_secret_name(name: str) -> bool:
    """True for a variable or flag whose words include token, key, secret, password…  (`--tokenizer` has none)."""
    return not _WORDS.isdisjoint(re.split(r"[^a-z0-9]+", name.lower()))


class Masker:
    """Replaces known secret values in any text."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        self._values: list[str] = []
        for value in values:
            self.add(value)

    def add(self, value: str) -> None:
        """Remember one more secret value, and how it reads in JSON, in a message's quotes and in a shell's."""
        if len(value) >= _SHORTEST:
            escaped = (json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1], repr(value)[1:-1])
            known = {*self._values, value, *escaped, value.replace("'", "'\"'\"'")}
            self._values = sorted(known, key=len, reverse=True)  # one secret may contain another

    def text(self, text: str) -> str:
        """`text` with every known secret masked."""
        for value in self._values:
            text = text.replace(value, MASK)
        return text

    def value(self, name: str, value: str) -> str:
        """What may be shown of the value of `name`."""
        return MASK if value and is_secret_name(name) else self.text(value)


def of_environment(environ: Mapping[str, str]) -> list[str]:
    """The values of all variables with a secret name."""
    return [value for name, value in environ.items() if is_secret_name(name)]


def of_arguments(arguments: Sequence[str]) -> list[str]:
    """The values of `--api-key X Y`, `--hf-token=X` and the like."""
    found: list[str] = []
    taking = False
    for word in arguments:
        if word.startswith("--"):
            flag, given, value = word.partition("=")
            taking = is_secret_name(flag[2:])
            if taking and given:
                found.append(value)
        elif taking:
            found.append(word)
    return found


def masked(arguments: Sequence[str], masker: Masker) -> list[str]:
    """The arguments as they may be shown."""
    shown: list[str] = []
    taking = False
    for word in arguments:
        if word.startswith("--"):
            flag, given, _ = word.partition("=")
            taking = is_secret_name(flag[2:])
            shown.append(f"{flag}={MASK}" if taking and given else masker.text(word))
        else:
            shown.append(MASK if taking else masker.text(word))
    return shown
