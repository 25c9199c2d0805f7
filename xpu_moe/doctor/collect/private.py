"""What must not enter a facts file: homes, users, hosts, serials; and secrets nowhere."""

from __future__ import annotations

import contextlib
import getpass
import platform
import re
import sys
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from xpu_moe.doctor.text import MASK, unsecret

_SECRET_NAME = re.compile(r"TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|CREDENTIAL|PRIVATE_KEY|AUTH", re.I)
_URL_USER = re.compile(r"(\w+://)[^/\s:@]+:[^/\s@]+@")
_HOMES = re.compile(r"/(?:homes?|[Uu]sers|media|run/user)/[^/\s:;,'\"]+|/root(?=/|$)")
_MAIL = re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
_ADDRESS = re.compile(r"(?<![\d.])(?!127\.|0\.0\.0\.0)(?:\d{1,3}\.){3}\d{1,3}(?![\d.])")  # versions have three parts
_MAC = re.compile(r"\b((?:en|wl|ww)x)[0-9a-f]{12}\b|\b(?:[0-9a-f]{2}:){5}[0-9a-f]{2}\b", re.I)
_HOST_NAME = re.compile(r"MASTER_ADDR|HOST_IP|IP_PORT|HOSTNAME|(?:\A|_)HOST\Z", re.I)
_NOBODY = frozenset({"root", "user", "users", "ubuntu", "debian", "admin", "vllm", "model", "models", "intel", "nvidia",
                     "localhost", "localdomain", "default", "venv", "node", "linux"})  # fmt: skip
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
    value = _MAC.sub(lambda found: f"{found.group(1) or ''}mac", _MAIL.sub("mail", _HOMES.sub("~", value)))
    value = _ADDRESS.sub("address", value) if not _is_version(value) else value
    for name, word in _names():
        value = re.sub(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])", word, value)
    return _numbered(value)


def _is_version(value: str) -> bool:
    """Only a number with dots, such as 0.1.15.2: in a field of its own that is a version, not an address."""
    return re.fullmatch(r"\d+(?:\.\d+){3}", value) is not None and int(value.split(".")[0]) < 10


@lru_cache(maxsize=1)
def _names() -> tuple[tuple[str, str], ...]:
    """Names of this user and host, to be taken out wherever they stand."""
    found = []
    with contextlib.suppress(OSError, KeyError, ImportError):  # a container's user without a name
        found.append((getpass.getuser(), "user"))
    host = platform.node()
    found += [(host, "host"), (host.split(".")[0], "host")]
    return tuple((name, word) for name, word in found if len(name) > 2 and name.lower() not in _NOBODY)


def _numbered(value: str) -> str:
    """Serials of cards (`GPU-8f2d…`) as GPU-0, GPU-1, …: how many and which are equal still shows."""
    seen: dict[str, str] = {}
    return _SERIAL.sub(lambda found: seen.setdefault(found.group().lower(), f"{found.group(1)}-{len(seen)}"), value)


def is_secret(name: str) -> bool:
    """Does the name of a variable say that its value is nobody's business?"""
    return _SECRET_NAME.search(name) is not None


def masked(environ: Mapping[str, str]) -> dict[str, str]:
    """Values fit to be recorded."""

    def one(name: str, value: str) -> str:
        if is_secret(name):
            return MASK
        if _HOST_NAME.search(name):
            return value if value in ("localhost", "::1") or value.startswith(("127.", "0.0.0.0")) else "host"
        return private(value)

    return {name: one(name, value) for name, value in environ.items()}
