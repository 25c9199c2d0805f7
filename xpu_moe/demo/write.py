"""Write a demo checkpoint whole or not at all: into a temporary sibling, then renamed."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from xpu_moe import host_memory
from xpu_moe.demo import tokenizer
from xpu_moe.demo.shape import BadShape, Shape, config

MARKER = ".xpu_moe_demo.json"
TWIN_SUFFIX = "-deq"


class NotOurs(RuntimeError):
    """The target folder holds something that this tool did not write."""


def twin_of(out: Path) -> Path:
    """The folder of the dequantised bf16 twin."""
    return out.with_name(out.name + TWIN_SUFFIX)


def folders_of(out: Path, shape: Shape, config_only: bool = False) -> list[Path]:
    """The folders of a checkpoint: `out`, and its twin where it has one. Raises NotOurs for the root."""
    out = Path(os.path.abspath(out))
    if not out.name:
        raise NotOurs(f"{out}: the root of all files; choose a folder")
    return [out] if shape.quant == "none" or config_only else [out, twin_of(out)]


def is_current(out: Path, shape: Shape, config_only: bool = False) -> bool:
    """Whether `out` holds just this checkpoint already, and its twin where it has one; else no twin of another."""
    wanted = _marker(shape, config_only)
    here = all(_read(folder / MARKER) == wanted for folder in folders_of(out, shape, config_only))
    return here and stale_twin(out, shape, config_only) is None


def stale_twin(out: Path, shape: Shape, config_only: bool = False) -> Path | None:
    """The twin of an earlier checkpoint that this one, which has none, would leave beside itself.

    Only what was written as a twin counts: its marker is that of a quantised checkpoint, its config.json has no
    quantisation. A folder of any other origin is nobody's twin.
    """
    twin = twin_of(out.absolute())
    if twin in folders_of(out, shape, config_only) or twin.is_symlink():
        return None
    marker, values = _read(twin / MARKER), _read(twin / "config.json")
    if marker is None or values is None or marker.get("config_only"):
        return None
    return twin if marker.get("quant") != "none" and "quantization_config" not in values else None


def write(out: Path, shape: Shape, *, config_only: bool = False) -> list[Path]:
    """Write the checkpoint to `out`, and its bf16 twin to `out`-deq where it is quantised. Returns the folders.

    A folder of ours is replaced, `stale_twin` is removed; a non-empty folder without our marker raises NotOurs before
    anything is written, sizes whose weights do not fit into the free memory raise BadShape. On any error (a full disk,
    Ctrl-C) the half-written siblings are removed and what was there stays.
    """
    out = out.absolute()
    targets, stale = folders_of(out, shape, config_only), stale_twin(out, shape, config_only)
    for target in targets:
        _refuse_foreign(target)
    out.parent.mkdir(parents=True, exist_ok=True)
    with _siblings(targets) as folders:
        vocab_size, bos, eos = 0, 0, 0
        for folder in folders:
            tokens, bos, eos = tokenizer.write(folder, shape.max_position)
            vocab_size = max(shape.vocab_size, -(-tokens // 64) * 64)
        for folder, values in zip(folders, _configs(config(shape, vocab_size, bos, eos))):
            _json(folder / "config.json", values)
            _json(folder / "generation_config.json", {"bos_token_id": bos, "eos_token_id": eos, "do_sample": False})
            _json(folder / MARKER, _marker(shape, config_only))
        if not config_only:
            _check_memory(shape, vocab_size)
            _write_weights(folders, shape, vocab_size)
        for folder, target in zip(folders, targets):
            _replace(folder, target)
    if stale is not None:
        shutil.rmtree(stale)
    return targets


@contextmanager
def locked(out: Path) -> Iterator[None]:
    """One writer at a time in the folder that holds `out` (which is made); others wait."""
    parent = out.absolute().parent
    parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(parent, os.O_RDONLY)
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _configs(values: dict) -> Iterator[dict]:
    yield values
    yield {key: value for key, value in values.items() if key != "quantization_config"}


def _check_memory(shape: Shape, vocab_size: int) -> None:
    """Raise BadShape where the host's free memory does not hold the weights: Linux would end us without a word."""
    free, needed = host_memory.free_memory(), shape.memory(vocab_size)
    if free and needed > free:
        raise BadShape(
            f"hidden_size, intermediate_size, num_experts, layers: got {shape.hidden_size}, {shape.intermediate_size}, "
            f"{shape.num_experts}, {shape.layers}, whose weights need {needed / 1e9:.1f} GB of the {free / 1e9:.1f} GB "
            "that are free; wanted smaller ones, or --config-only"
        )


def _write_weights(folders: list[Path], shape: Shape, vocab_size: int) -> None:
    from xpu_moe.demo.weights import tensors

    stored: dict[str, Any] = {}
    twin: dict[str, Any] = {}
    for on_disk, exact in tensors(shape, vocab_size):
        stored |= on_disk
        twin |= exact
    _write_shards(folders[0], stored, shape.shards)
    for folder in folders[1:]:
        _write_shards(folder, twin, shape.shards)


def _write_shards(folder: Path, tensors: dict, shards: int) -> None:
    from safetensors.torch import save_file

    names = list(tensors)
    per_shard = -(-len(names) // shards)
    weight_map: dict[str, str] = {}
    for shard in range(shards):
        part = names[shard * per_shard : (shard + 1) * per_shard]
        file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        save_file({name: tensors[name] for name in part}, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, file)
    total = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    _json(folder / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": weight_map})


def _marker(shape: Shape, config_only: bool) -> dict:
    return {"format": 1, "config_only": config_only, **asdict(shape)}


def _read(file: Path) -> dict | None:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _refuse_foreign(target: Path) -> None:
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise NotOurs(f"{target}: exists and is no folder; choose another")
    if target.exists() and any(target.iterdir()) and not (target / MARKER).exists():
        raise NotOurs(f"{target}: not empty and without {MARKER}, so not written by this tool; choose another folder")


@contextmanager
def _siblings(targets: Iterable[Path]) -> Iterator[list[Path]]:
    folders: list[Path] = []
    try:
        for target in targets:
            folders.append(target.with_name(f".{target.name}.{secrets.token_hex(4)}"))  # noted before it is there
            folders[-1].mkdir(0o755)
        yield folders
    finally:
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)


def _replace(folder: Path, target: Path) -> None:
    """Put `folder` where `target` is; the old one leaves only after the new one is complete."""
    if target.exists():
        old = folder.with_name(folder.name + ".old")
        os.rename(target, old)
        os.rename(folder, target)
        shutil.rmtree(old, ignore_errors=True)
    else:
        os.rename(folder, target)


def _json(path: Path, value: dict) -> None:
    path.write_text(json.dumps(value, indent=1), encoding="utf-8")
