"""Foreign text made harmless: what a facts file or a log holds was written by others."""

from __future__ import annotations

import re
import shlex
from typing import Any

_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor
    r"|\x1b[\]PX^_].*?(?:\x07|\x1b\\|$)"  # OSC, DCS, SOS, PM, APC: titles, links
    r"|\x1b[ -/]*[0-~]"  # two-character escapes
    r"|\x9b[0-?]*[ -/]*[@-~]"
)
_BIDI = "\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u061c\u200b\u200c\u200d\u2060\ufeff"
_CONTROLS = re.compile(f"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029{_BIDI}]")
_MARKUP = re.compile(r"</?[A-Za-z!][^<>]{0,200}>|\[/?[A-Za-z#@][A-Za-z0-9#@_ ,=./-]{0,80}\]|\[/\]")
MASK = "***"
_SECRETS = re.compile(r"\b(?:hf_[A-Za-z0-9]{8,}|sk-[A-Za-z0-9_-]{8,}|gh[pousr]_[A-Za-z0-9]{8,}|eyJ[\w-]{8,}\.[\w.-]+)")
_NAMED_SECRETS = re.compile(
    r"(?i)((?:(?:api[-_]?key|token|secret|passw(?:or)?d|authorization)['\"]?\s*[:=]\s*(?:bearer\s+)?)"
    r"|--(?:api-key|hf-token|token|password)[\s=]+|\bbearer\s+)"
    r"(?:'[^']+'|\"[^\"]+\"|[^\s'\",;)}\]]{4,})"
)
_SPACE = re.compile(r"[ \t\n]+")
_DIGITS = re.compile(r"[0-9]{1,18}\Z")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}\Z")


def clean(text: str, limit: int = 400) -> str:
    """`text` on one line, without control sequences, direction marks or markup, cut at `limit` characters."""
    text = _CONTROLS.sub("", _ESCAPES.sub("", text[: 8 * limit + 4096]))
    text = unsecret(_SPACE.sub(" ", _MARKUP.sub("", text)).strip())
    return text if len(text) <= limit else text[: limit - 1] + "…"


def unsecret(text: str) -> str:
    """`text` with keys and tokens masked: those of known shape, and what follows a name such as `api_key=`."""
    return _NAMED_SECRETS.sub(rf"\1{MASK}", _SECRETS.sub(MASK, text))


def shown(value: Any, limit: int = 80) -> str:
    """A foreign value for a sentence."""
    return clean(str(value), limit)


def quoted(value: Any) -> str:
    """A foreign value for a command that people paste into a shell."""
    return shlex.quote(clean(str(value), 200))


def is_number(text: str) -> bool:
    """Is this a whole number of a size that anything has? `²` is a digit to Python, and no number to int()."""
    return _DIGITS.match(text) is not None


def is_name(text: str) -> bool:
    """Is this the name of an environment variable?"""
    return _NAME.match(text) is not None
