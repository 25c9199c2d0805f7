"""The environment, as far as the registry knows the names: nothing else is recorded."""

from __future__ import annotations

from typing import Any

from xpu_moe.doctor.collect.private import MASK, masked
from xpu_moe.doctor.collect.where import Where
from xpu_moe.env.registry import find


def facts(where: Where) -> dict[str, Any]:
    """`env`: registered names only, without personal parts; secrets masked."""
    rows = {name: row for name in where.environ if (row := find(name)) is not None}
    values = masked({name: where.environ[name] for name in rows})
    return {"env": {name: MASK if rows[name].secret else values[name] for name in sorted(rows)}}
