"""The checkpoint: config.json, the safetensors index or headers. No weights are read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from xpu_moe.doctor.collect.private import private
from xpu_moe.doctor.collect.tokenizer import tokenizer
from xpu_moe.doctor.collect.where import Where, known
from xpu_moe.formats.headers import examine
from xpu_moe.formats.layout import unlike
from xpu_moe.plan.checkpoint import BadCheckpoint, Checkpoint, Problem, read

_INDEX = "model.safetensors.index.json"
_WEIGHTS = (".safetensors", ".gguf", ".bin", ".pt", ".pth")


def facts(where: Where) -> dict[str, Any]:
    """`model`; a checkpoint that cannot be read is a fact too (`index_error`, and in `index_advice` what to do)."""
    if where.model is None:
        return {}
    files, folder = _files(where.model), os.path.abspath(where.model)
    try:
        found = read(where.model)
    except BadCheckpoint as error:
        return {"model": known({**_problem(error.problem), "files": files, "folder": folder})}
    return {
        "model": known(
            {
                "config": _without_personal(found.config),
                # {} = config.json has none, which is more than not knowing
                "quantization_config": _private(dict(found.quantization)),
                "tensor_names": sorted(found.tensors) or None,
                "shards_missing": list(found.shards_missing) or None,
                **_problem(found.problem),
                **_unlike(found),
                **_headers(found),
                **tokenizer(where.model),
                "weights_bytes": found.bytes_on_disk or None,
                "files": files,
                "folder": folder,
            }
        )
    }


def _problem(problem: Problem | None) -> dict[str, str]:
    return {"index_error": problem.says, "index_advice": problem.remedy} if problem else {}


def _unlike(found: Checkpoint) -> dict[str, Any]:
    """Tensors whose shapes are not those of config.json: the first, and how many."""
    shapes = {name: (tensor.shape, tensor.shard) for name, tensor in found.tensors.items()}
    wrong = list(unlike(found.config, found.quantization, shapes))
    return {"unlike_config": {"first": private(wrong[0]), "count": len(wrong)}} if wrong else {}


def _headers(found: Checkpoint) -> dict[str, Any]:
    """`header_error`: shards that safetensors refuses; `tensors_lost`: names of the index that its shard lacks too."""
    listed = (found.path / _INDEX).is_file()
    shards = {tensor.shard for tensor in found.tensors.values()}
    shards |= set() if listed else {file.name for file in found.path.glob("*.safetensors")}
    read = {shard: header for shard in sorted(shards) if (header := examine(found.path / shard))}
    wrong = [(shard, says) for shard, header in read.items() for says in header.wrong]
    facts: dict[str, Any] = {}
    if wrong:
        facts["header_error"] = {"first": private(wrong[0][1]), "file": private(wrong[0][0]), "count": len(wrong)}
    held = frozenset[str]().union(*(header.names for header in read.values()))
    lost = [(name, tensor.shard) for name, tensor in found.tensors.items() if tensor.shard in read and name not in held]
    if lost:
        facts["tensors_lost"] = {"first": private(lost[0][0]), "file": private(lost[0][1]), "count": len(lost)}
    return facts


def _files(folder: Path) -> list[str] | None:
    """Files of weights, of every format; None where the folder cannot be listed."""
    try:
        names = [file.name for file in folder.iterdir()] if folder.is_dir() else [folder.name]
    except OSError:
        return None
    return sorted(private(name) for name in names if name.lower().endswith(_WEIGHTS))


def _without_personal(config: Any) -> dict[str, Any]:
    """config.json as it is, except where its writer's folders stand in it."""
    kept = {key: value for key, value in dict(config).items() if key not in ("_name_or_path", "name_or_path")}
    found = _private(kept)
    return found if isinstance(found, dict) else {}


def _private(value: Any) -> Any:
    """The same JSON with every text stripped of homes, users and secrets."""
    if isinstance(value, dict):
        return {private(str(key)): _private(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_private(inner) for inner in value]
    return private(value) if isinstance(value, str) else value
