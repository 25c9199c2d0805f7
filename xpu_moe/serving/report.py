"""Which backend serves, told by every worker to whoever started it. Pure Python: no torch, no vLLM.

For a launcher:

    folder = …                                    # empty, mode 0700, of this run alone
    environ["XPU_MOE_REPORT"] = str(folder)       # inherited by every vLLM process
    … start vLLM, wait until it answers …
    told = report.summary(folder)                 # {"backend", "reason", "layers", "workers", "notes", …}

Each worker (one a rank) writes `worker-<rank>-<pid>.json` as its layers are prepared, at each layer anew and
atomically, so that a reader never sees half a file; all of it is there before the server answers. A process in which
the plugin steps back writes `note-<pid>.json`. `summary` never raises for a missing or strange folder: `backend` is
then "" and `reason` says what was found. `backend` is the decode backend of the MoE layers, "stock" where the plugin
took none; when ranks or layers differ, the names joined by "+".
"""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

SCHEMA = 1
STOCK = "stock"


@dataclass
class Layer:
    """Layers of one kind that are served alike.

    `kind` is moe_int4, moe_fp8 or linear_int4; `case` the words that tell this kind from others; `decode` and
    `prefill` are served by `backend` and `prefill_backend`, each with its reason; `routing` says who routes;
    `refused` holds [name, reason] of the backends asked before. Bytes are of one layer on one rank: as loaded, and as
    kept.
    """

    kind: str
    case: str
    backend: str
    reason: str
    prefill_backend: str = ""
    prefill_reason: str = ""
    routing: str = ""
    layout: str = ""
    nibble: str = ""
    decode_limit: int = 0
    bytes_loaded: int = 0
    bytes_kept: int = 0
    refused: list[list[str]] = field(default_factory=list)
    count: int = 1
    first: str = ""

    def line(self) -> str:
        """One line for a log."""
        prefill = f"; M > {self.decode_limit}: {self.prefill_backend}: {self.prefill_reason}" * bool(
            self.prefill_backend
        )
        routing = f"; routing: {self.routing}" * bool(self.routing)
        layout = f", layout {self.layout} {self.nibble}".rstrip() * bool(self.layout)
        kept = f", {self.bytes_loaded} -> {self.bytes_kept} bytes a layer"
        refused = "".join(f"; not {name}: {why}" for name, why in self.refused)
        return f"{self.kind} {self.case} -> {self.backend}: {self.reason}{prefill}{routing}{layout}{kept}{refused}"


@dataclass
class Worker:
    """What one process tells."""

    rank: int = 0
    world_size: int = 1
    pid: int = 0
    device: str = ""
    vllm: str = ""
    xpu_moe: str = ""
    fingerprint: str = ""
    hooks: list[str] = field(default_factory=list)
    layers: list[Layer] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    schema: int = SCHEMA

    def add(self, layer: Layer) -> bool:
        """Count `layer` in; True when it is the first of its kind (log it then)."""
        for known in self.layers:
            if (known.kind, known.case, known.backend, known.reason) == (
                layer.kind, layer.case, layer.backend, layer.reason
            ):  # fmt: skip
                known.count += 1
                return False
        self.layers.append(layer)
        return True

    def write(self, folder: str | Path) -> None:
        """Into `folder` (made when missing), atomically. OSError is the caller's to tell."""
        name = f"worker-{self.rank}-{self.pid}.json" if self.layers else f"note-{self.pid}.json"
        target = Path(folder)
        target.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=target, prefix=".part-")
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            json.dump(asdict(self), out, indent=1)
        os.replace(temporary, target / name)
        if self.layers:
            (target / f"note-{self.pid}.json").unlink(missing_ok=True)


def read(folder: str | Path) -> list[Worker]:
    """What every process told, in the order of ranks; unreadable files are left out."""
    found = []
    for file in sorted(Path(folder).glob("*.json")):
        try:
            raw = json.loads(file.read_text(encoding="utf-8"))
            layers = [Layer(**layer) for layer in raw.pop("layers")]
            found.append(Worker(**raw, layers=layers))
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            continue
    return sorted(found, key=lambda worker: (worker.rank, worker.pid))


def summary(folder: str | Path) -> dict[str, Any]:
    """One object for a launcher's own summary; see the top of this file."""
    told = read(folder)
    workers = [worker for worker in told if worker.layers]
    notes = _distinct(note for worker in told for note in worker.notes)
    moe = [layer for worker in workers for layer in worker.layers if layer.kind.startswith("moe")]
    if moe:
        backend = "+".join(_distinct(layer.backend for layer in moe))
        reason = "; ".join(_distinct(layer.reason for layer in moe))
    elif told:
        backend, reason = STOCK, "; ".join(notes) or "the plugin took no MoE layer"
    else:
        backend, reason = "", f"no report in {folder}: the plugin was not loaded, or no worker got as far as its layers"
    return {
        "backend": backend,
        "reason": reason,
        "prefill_backend": "+".join(_distinct(layer.prefill_backend for layer in moe)),
        "layers": [asdict(layer) for layer in (workers[0].layers if workers else [])],
        "workers": len(workers),
        "world_size": max((worker.world_size for worker in workers), default=0),
        "hooks": sorted({hook for worker in workers for hook in worker.hooks}),
        "fingerprint": "+".join(_distinct(worker.fingerprint for worker in workers)),
        "notes": notes,
    }


def _distinct(texts: Any) -> list[str]:
    return [text for text in dict.fromkeys(texts) if text]
