"""Write a demo checkpoint whole or not at all: into a temporary sibling, then renamed."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from xpu_moe import host_memory
from xpu_moe.demo import owned, tokenizer
from xpu_moe.demo.owned import MARKER, NotOurs
from xpu_moe.demo.shape import BadShape, Shape, config

__all__ = [
    "MARKER",
    "NotOurs",
    "Written",
    "folders_of",
    "is_current",
    "locked",
    "replace",
    "stale_twin",
    "twin_of",
    "write",
]

TWIN_SUFFIX = "-deq"
_KEPT = ".kept-"  # and eight digits: what stood there, until it is removed; no hidden name, so that a crash shows it


@dataclass(frozen=True)
class Written:
    """What `replace` did: `replaced` stood there before; `kept` are folders with what is not ours to remove."""

    folders: list[Path]
    replaced: list[Path]
    removed: list[Path]
    kept: list[Path]


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
    """Whether `out` holds just this checkpoint already, byte for byte, and its twin if it has one; else no stale twin.

    Files beside it that somebody else put there are no matter.
    """
    for place, folder in enumerate(folders_of(out, shape, config_only)):
        if owned.settings(folder) != _settings(shape, config_only, place > 0) or not owned.survey(folder).whole:
            return False
    return stale_twin(out, shape, config_only) is None


def stale_twin(out: Path, shape: Shape, config_only: bool = False) -> Path | None:
    """The twin of an earlier checkpoint that this one, which has none, would leave beside itself.

    Only what was written as a twin counts, by its marker. A folder of any other origin is nobody's twin.
    """
    folders = folders_of(out, shape, config_only)
    twin = twin_of(folders[0])
    marker = owned.settings(twin)
    if twin in folders or twin.is_symlink() or marker is None:
        return None
    if marker.get("format") == 1:  # which did not tell
        values = owned.read(twin / "config.json")
        quantised = marker.get("quant") != "none" and not marker.get("config_only")
        return twin if quantised and values is not None and "quantization_config" not in values else None
    return twin if marker.get("twin") else None


def write(out: Path, shape: Shape, *, config_only: bool = False) -> list[Path]:
    """As `replace`; returns the folders."""
    return replace(out, shape, config_only=config_only).folders


def replace(out: Path, shape: Shape, *, config_only: bool = False, repair: bool = False) -> Written:
    """Write the checkpoint to `out`, and its bf16 twin to `out`-deq where it is quantised.

    A folder of ours is replaced, `stale_twin` is removed. One of them that holds anything that this tool did not write
    raises NotOurs before anything is written, as do files of ours that were changed; with `repair` these are kept in a
    folder beside. Sizes whose weights do not fit into the free memory raise BadShape. On any error (a full disk,
    Ctrl-C) the half-written siblings are removed and what was there stays.
    """
    targets, stale = folders_of(out, shape, config_only), stale_twin(out, shape, config_only)
    leaving = [stale] if stale else []
    for target in (*targets, *leaving):
        _refuse(target, repair)
    targets[0].parent.mkdir(parents=True, exist_ok=True)
    left = [old for target in targets if not target.exists() for old in _kept_of(target)]
    with _siblings(targets) as folders:
        _fill(folders, shape, config_only)
        pairs: list[tuple[Path | None, Path]] = [*zip(folders, targets), *((None, twin) for twin in leaving)]
        olds = _swap(pairs)
    replaced = [target for target in olds if target in targets and any(olds[target].iterdir())]
    left += [old for old in olds.values() if not owned.discard(old)]
    return Written(targets, replaced, leaving, left)


def _fill(folders: list[Path], shape: Shape, config_only: bool) -> None:
    vocab_size, bos, eos = 0, 0, 0
    for folder in folders:
        tokens, bos, eos = tokenizer.write(folder, shape.max_position)
        vocab_size = max(shape.vocab_size, -(-tokens // 64) * 64)
    for folder, values in zip(folders, _configs(config(shape, vocab_size, bos, eos))):
        _json(folder / "config.json", values)
        _json(folder / "generation_config.json", {"bos_token_id": bos, "eos_token_id": eos, "do_sample": False})
    if not config_only:
        _check_memory(shape, vocab_size)
        _write_weights(folders, shape, vocab_size)
    for place, folder in enumerate(folders):
        owned.seal(folder, _settings(shape, config_only, place > 0))


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


def _settings(shape: Shape, config_only: bool, twin: bool) -> dict[str, Any]:
    return {"format": owned.FORMAT, "config_only": config_only, "twin": twin, **asdict(shape)}


def _refuse(target: Path, repair: bool) -> None:
    why = owned.refusal(target, repair)
    if why is None:
        return
    # changed files alone are what --repair is for
    other = (
        ""
        if repair or owned.refusal(target, repair=True)
        else ", or give --repair, which keeps them in a folder beside"
    )
    raise NotOurs(f"{why}; nothing was touched: choose another OUT, or move away what you want to keep{other}")


@contextmanager
def _siblings(targets: Iterable[Path]) -> Iterator[list[Path]]:
    folders: list[Path] = []
    try:
        for target in targets:
            folders.append(target.with_name(f".{target.name}.{secrets.token_hex(4)}"))  # noted before it is there
            try:
                folders[-1].mkdir(0o755)
            except OSError:  # one that was there already is somebody else's
                folders.pop()
                raise
        yield folders
    finally:
        for folder in folders:
            with suppress(OSError):  # as after a success: renamed
                for file in folder.iterdir():
                    file.unlink()
                folder.rmdir()


def _swap(pairs: list[tuple[Path | None, Path]]) -> dict[Path, Path]:
    """Put each folder where its target is (none: just away). Returns where the old ones are; an error undoes all."""
    olds = {target: target.with_name(f"{target.name}{_KEPT}{secrets.token_hex(4)}") for _, target in pairs}
    try:
        for folder, target in pairs:
            if target.exists():
                os.rename(target, olds[target])
            if folder is not None:
                os.rename(folder, target)
    except BaseException:
        for folder, target in reversed(pairs):
            if folder is not None and not folder.exists() and target.exists():
                os.rename(target, folder)  # for `_siblings` to remove
            if olds[target].exists():
                os.rename(olds[target], target)
        raise
    return {target: old for target, old in olds.items() if old.exists()}


def _kept_of(target: Path) -> list[Path]:
    return sorted(path for path in target.parent.iterdir() if path.name.startswith(target.name + _KEPT))


def _json(path: Path, value: dict) -> None:
    path.write_text(json.dumps(value, indent=1), encoding="utf-8")
