"""The folder of the checkpoint: is it one that the launcher serves, and does it hold what config.json promises?

These rules speak of a folder that was looked at (`model.files`): recorded facts often hold a sample of the names.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from xpu_moe.doctor.reading import MOST_NAMES
from xpu_moe.doctor.rules.base import Context, Row, Rule
from xpu_moe.doctor.text import shown
from xpu_moe.formats.claims import MODEL_TYPES

Hit = dict[str, Any]
PICKLED = (".bin", ".pt", ".pth")
_WANTED = "take an AutoRound or GPTQ INT4 checkpoint in safetensors, with its config.json"


def _first(context: Context, *suffixes: str) -> Hit | None:
    found = [name for name in context.model.files or () if name.lower().endswith(suffixes)]
    return {"example": found[0], "count": len(found)} if found else None


def _gguf(context: Context) -> Hit | None:
    return _first(context, ".gguf")


def _pickled(context: Context) -> Hit | None:
    return _first(context, *PICKLED)


def _none(context: Context) -> bool:
    model = context.model
    if model.files is None or model.index_error or model.shards_missing:
        return False
    return _first(context, ".safetensors") is None


def _model_type(context: Context) -> Hit | None:
    model = context.model
    if model.files is None or (not model.config and model.index_error):
        return None
    kind = model.config.get("model_type")
    return None if kind in MODEL_TYPES else {"kind": shown(repr(kind) if kind is not None else "absent")}


def _incomplete(context: Context) -> Hit | None:
    """Matrices of experts, and layers, without a single tensor."""
    model, shapes, names = context.model, context.shapes, context.model.tensor_names
    if model.files is None or shapes is None or model.index_error or model.shards_missing:
        return None
    if model.config.get("model_type") not in MODEL_TYPES or names is None or len(names) >= MOST_NAMES:
        return None
    there = {name.rpartition(".")[0] for name in names}
    lost = [module for module in _modules(shapes.layers, shapes.num_experts) if module not in there]
    return {"example": lost[0], "count": len(lost)} if lost else None


def _modules(layers: int, experts: int) -> Iterator[str]:
    """Modules that every layer of a MiniMax-M2 checkpoint has (its published index)."""
    if layers * experts > MOST_NAMES:
        return
    for layer in range(layers):
        yield from (f"model.layers.{layer}.self_attn.{part}_proj" for part in "qkvo")
        for expert in range(experts):
            yield from (f"model.layers.{layer}.block_sparse_moe.experts.{expert}.{part}" for part in ("w1", "w2", "w3"))


RULE = Rule(
    "folder that is no checkpoint to serve",
    "What the launcher refuses before anything starts, and what is not all there.",
    (
        Row(
            "files.gguf", "error", "model.files",
            "GGUF files are not served",
            "{example}: the format of llama.cpp, which neither the launcher nor the plugin takes.",
            _WANTED,
            "docs/launch.md", _gguf,
        ),
        Row(
            "files.pickled", "error", "model.files",
            "pickled files stand in the folder",
            "{example} ({count} such files): reading one can run code, so the launcher refuses the folder.",
            "use a safetensors checkpoint and move these files away",
            "docs/launch.md", _pickled,
        ),
        Row(
            "files.none", "error", "model.files",
            "the folder holds no .safetensors file",
            "There are no weights to load.",
            "download the checkpoint again, or give the folder that holds it",
            "docs/launch.md", _none,
        ),
        Row(
            "files.model-type", "error", "model.config.model_type",
            "this is no MiniMax-M2 checkpoint",
            f"config.json's model_type is {{kind}}; the launcher serves {' or '.join(MODEL_TYPES)}.",
            "give the folder of a MiniMax-M2 checkpoint",
            "docs/launch.md", _model_type, under=("model.files",),
        ),
        Row(
            "files.incomplete", "error", "model.tensor_names",
            "the checkpoint is not all there",
            "{count} matrices that config.json promises have no tensor; the first: {example}.",
            "download the checkpoint again",
            "layout of the published MiniMax-M2 checkpoints", _incomplete,
        ),
    ),
)  # fmt: skip
