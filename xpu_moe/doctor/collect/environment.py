"""The environment, as far as the registry knows the names, and misspelt names of our own: nothing else is recorded."""

from __future__ import annotations

from typing import Any

from xpu_moe.doctor.collect.private import MASK, masked
from xpu_moe.doctor.collect.where import Where
from xpu_moe.env.registry import find

# variables whose library fails when the folder is missing (those of caches are made on demand)
_FOLDERS = ("FI_PROVIDER_PATH", "CCL_KERNEL_PATH", "CCL_ZE_LIBRARY_PATH", "CCL_DRMFD_DEV_RENDER_DIR_PATH", "CCL_ROOT")


def facts(where: Where) -> dict[str, Any]:
    """`env`: registered names, without personal parts, secrets masked; of unknown XPU_MOE_ names no value."""
    rows = {name: row for name in where.environ if (row := find(name)) is not None}
    values = masked({name: where.environ[name] for name in rows})
    env = {name: MASK if rows[name].secret else values[name] for name in sorted(rows)}
    env |= {name: MASK for name in where.environ if name.startswith("XPU_MOE_") and name not in rows}
    gone = [name for name in _FOLDERS if (path := where.environ.get(name)) and not where.path(path).exists()]
    return {"env": env, "paths_missing": gone} if gone else {"env": env}
