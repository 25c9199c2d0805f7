"""What can be chosen about the plugin, and how the choice travels.

Everything here may change traced code, so it goes into vLLM's `--additional-config '{"xpu_moe": {...}}'`, which reaches
every worker and enters vLLM's compile-cache key (environment variables do not). The object also carries
`fingerprint`, a hash of our version, our sources and the choice itself: an upgrade recompiles by itself.

The launcher writes it:   Options(backend="cpu_grouped").additional_config(user_config) -> dict for json.dumps
The plugin reads it:      Options.read(vllm_config.additional_config)

Needs neither torch nor vLLM.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from xpu_moe.version import __version__

KEY = "xpu_moe"
# The decode kernels are right for M <= 64 and first class for M <= 4; see docs/esimd.md.
DECODE_LIMIT = 64
PREFILLS = ("auto", "stock", "own")
ROUTED = ("auto", "on", "off")


class BadOption(ValueError):
    """An entry of the plugin's options that is unknown or has a wrong value."""


@dataclass(frozen=True)
class Options:
    """The plugin's choices.

    `backend` / `prefill_backend`: ask for one backend of `ops.select` by name ("" = the first that serves the case;
    one that is named and cannot serve is an error at load). `decode_limit`: the largest number of tokens that the
    decode operator gets; more go the prefill way. `prefill`: `stock` = vLLM's own kernels, `own` = our backends,
    `auto` = stock where they exist for the layer's layout, else own. `routed`: the router inside the decode call
    (`ops.moe_u4_routed`): `auto` = on an accelerator whose backend has it, `on` = or an error at load. `hooks`: names
    out of `xpu_moe.serving.hooks.table`, in any order; `auto` stands for those that are harmless wherever they fit.
    (To keep the plugin off a checkpoint, name vLLM's own method: `--quantization inc`, `--quantization gptq`.)
    """

    backend: str = ""
    prefill_backend: str = ""
    decode_limit: int = DECODE_LIMIT
    prefill: str = "auto"
    routed: str = "auto"
    hooks: tuple[str, ...] = ("auto",)

    def __post_init__(self) -> None:
        _want("decode_limit", self.decode_limit, type(self.decode_limit) is int and self.decode_limit >= 1, "int >= 1")
        _want("prefill", self.prefill, self.prefill in PREFILLS, " or ".join(PREFILLS))
        _want("routed", self.routed, self.routed in ROUTED, " or ".join(ROUTED))
        for name in ("backend", "prefill_backend"):
            _want(name, getattr(self, name), isinstance(getattr(self, name), str), "a backend's name or an empty text")
        texts = isinstance(self.hooks, (list, tuple)) and all(isinstance(hook, str) for hook in self.hooks)
        _want("hooks", self.hooks, texts, "a list of hook names")
        object.__setattr__(self, "hooks", tuple(sorted(set(self.hooks))))

    def fingerprint(self) -> str:
        """12 hex digits over our version, our sources and these choices."""
        text = json.dumps([__version__, _sources(), asdict(self)], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def additional_config(self, given: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The object for `--additional-config`: the user's own (`given`) with our entry filled in.

        What the user wrote below "xpu_moe" wins over the fields of this object. Raises BadOption.
        """
        chosen = {**asdict(self), "hooks": list(self.hooks)}
        chosen.update({k: v for k, v in _entry(given).items() if k != "fingerprint"})
        options = Options.parse(chosen)
        entry = {**asdict(options), "hooks": list(options.hooks), "fingerprint": options.fingerprint()}
        return {**(given or {}), KEY: entry}

    @classmethod
    def parse(cls, entry: Mapping[str, Any]) -> Options:
        """From the entry itself; the fingerprint is ignored. Raises BadOption."""
        known = {f.name for f in fields(cls)}
        for name in entry:
            if name not in known and name != "fingerprint":
                raise BadOption(f"additional-config {KEY}.{name}: unknown; known: {', '.join(sorted(known))}")
        return cls(**{k: v for k, v in entry.items() if k in known})

    @classmethod
    def read(cls, additional_config: Any) -> Options:
        """From vLLM's additional_config; defaults where it has no entry of ours. Raises BadOption."""
        return cls.parse(_entry(additional_config))


def _entry(additional_config: Any) -> dict[str, Any]:
    if not isinstance(additional_config, Mapping):  # vLLM also accepts an object of the user's own class
        return {}
    entry = additional_config.get(KEY, {})
    if not isinstance(entry, Mapping):
        raise BadOption(f"additional-config {KEY}: got {type(entry).__name__}, wanted an object")
    return dict(entry)


def _want(name: str, got: object, good: bool, wanted: str) -> None:
    if not good:
        raise BadOption(f"additional-config {KEY}.{name}: got {got!r}, wanted {wanted}")


@cache
def _sources() -> str:
    """A digest of the files whose code vLLM may trace: this room and the operators."""
    digest = hashlib.sha256()
    room = Path(__file__).parent
    for folder in (room, room / "hooks", room.parent / "ops"):
        for file in sorted(folder.glob("*.py")):
            digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()
