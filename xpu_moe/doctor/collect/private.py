"""What must not enter a facts file: homes, users, hosts, serials; and secrets nowhere."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path

from xpu_moe.doctor.text import MASK, unsecret

_SECRET_NAME = re.compile(r"TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|CREDENTIAL|PRIVATE_KEY|AUTH", re.I)
_URL_USER = re.compile(r"(\w+://)[^/\s:@]+:[^/\s@]+@")
_HOMES = re.compile(r"/(?:home|Users)/[^/\s:;,'\"]+|/root(?=/|$)")
_SERIAL = re.compile(r"\b(GPU|MIG)-[0-9a-f]{8}-[0-9a-f-]{20,}", re.I)


def private(value: str) -> str:
    """A path or value without personal parts: the interpreter's folder is `venv`, a home is `~`."""
    value = _URL_USER.sub(rf"\1{MASK}@", unsecret(value))
    if sys.prefix != "/usr":
        value = value.replace(sys.prefix, "venv")
    try:
        home = str(Path.home())
    except RuntimeError:
        home = ""
    if len(home) > 1:
        value = value.replace(home, "~")
    return _numbered(_HOMES.sub("~", value))


def _numbered(value: str) -> str:
    """Serials of cards (`GPU-8f2d…`) as GPU-0, GPU-1, …: how many and which are equal still shows."""
    seen: dict[str, str] = {}
    return _SERIAL.sub(lambda found: seen.setdefault(found.group().lower(), f"{found.group(1)}-{len(seen)}"), value)


def is_secret(name: str) -> bool:
    """Does the name of a variable say that its value is nobody's business?"""
    return _SECRET_NAME.search(name) is not None


def masked(environ: Mapping[str, str]) -> dict[str, str]:
    """Values fit to be recorded."""
    return {name: MASK if is_secret(name) else private(value) for name, value in environ.items()}
