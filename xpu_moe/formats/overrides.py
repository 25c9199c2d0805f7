"""Which override of a `quantization_config` names a module: GPTQ's `dynamic` and AutoRound's `extra_config`.

A name is compared as vLLM 0.32 compares it, in its order and with its kind of match:

* GPTQ (`get_dynamic_override`): every key is a regular expression that must match from the start of the name, and the
  first that does counts; `-:` leaves the module in 16 bits.
* AutoRound (`INCConfig`): the whole name, then its end, then the first regular expression found anywhere in it. A key
  without any of `*+?^$()[]{}|` and a backslash is no regular expression.

Beyond vLLM, a plain key names what stands below it too: `…block_sparse_moe.experts` its experts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from xpu_moe.formats import patterns
from xpu_moe.formats.quantization import UnsupportedCheckpoint

Fields = Mapping[str, Any]
NOT_QUANTISED: Fields = {"bits": 16}
_SPECIAL = re.compile(r"[*+?^$()\[\]{}|\\]")


@dataclass(frozen=True)
class Override:
    """One row: a regular expression (`anchored` = from the start of the name) or a plain name."""

    key: str
    fields: Fields
    regular: bool
    anchored: bool = False


def overrides(config: Mapping[str, Any]) -> list[Override]:
    """The rows of a config in their order. Raises UnsupportedCheckpoint for a field of another type."""
    if str(config.get("quant_method", "")).lower() == "gptq":
        return [_dynamic(key, fields) for key, fields in _rows(config, "dynamic")]
    return [Override(key, fields, bool(_SPECIAL.search(key))) for key, fields in _rows(config, "extra_config")]


def told(names: Sequence[str], module: str, rows: Sequence[Override], usual: Fields) -> dict[str, Fields]:
    """The fields that count for each of `names`, a checkpoint's names of what vLLM asks for as one `module`.

    A row that names the module as vLLM reads it counts for all names, another for those that it names itself. `usual`
    is what holds without a row, and for the fields that a regular expression leaves out.
    """
    plain = [row for row in rows if not row.regular]
    exact = {row.key: row.fields for row in plain}
    found = {name: exact[name] for name in names if name in exact}
    if module in exact:  # INCConfig.get_quant_method: a whole name without bits has 16
        found = {name: {**NOT_QUANTISED, **exact[module]} for name in names} | found
    for row in [*plain, *(row for row in rows if row.regular)]:
        left = [name for name in names if name not in found]
        if not left:
            break
        found |= dict.fromkeys(_hit(row, left, module), {**usual, **row.fields} if row.regular else row.fields)
    return {name: found.get(name, usual) for name in names}


def _hit(row: Override, names: Sequence[str], module: str) -> Iterable[str]:
    if not row.regular:
        return names if module.endswith(f".{row.key}") else [name for name in names if _is_below(name, row.key)]
    hit = patterns.matching(row.key, [module, *names], anchored=row.anchored)
    return names if module in hit else hit


def may_name(row: Override, base: str, parts: Sequence[str]) -> bool:
    """Can this row name a module below `base` (or `base` by vLLM's name)? Most name routers and attention."""
    return row.regular or "experts" in row.key or base.startswith(row.key) or row.key.split(".")[-1] in parts


def _dynamic(key: str, fields: Fields) -> Override:
    if key.startswith("-:"):
        return Override(key.removeprefix("-:"), NOT_QUANTISED, regular=True, anchored=True)
    return Override(key.removeprefix("+:"), fields, regular=True, anchored=True)


def _rows(config: Mapping[str, Any], field: str) -> list[tuple[str, Fields]]:
    """The named modules of a field of overrides; a row that holds nothing overrides nothing."""
    rows = config.get(field) or {}
    if not isinstance(rows, Mapping):
        raise UnsupportedCheckpoint(f"quantization_config.{field}: got {type(rows).__name__}, wanted an object")
    for name, fields in rows.items():
        if not isinstance(fields, Mapping) and fields is not None:
            got = type(fields).__name__
            raise UnsupportedCheckpoint(f"quantization_config.{field} of {name}: got {got}, wanted an object")
    return [(str(name), fields or {}) for name, fields in rows.items()]


def _is_below(name: str, key: str) -> bool:
    return name.startswith(key + ".") or name.endswith("." + key)
