"""One MoE layer of an AutoRound/GPTQ checkpoint folder -> canonical weights of one rank, streamed.

safetensors only. An expert is read, turned and written into its place before the next one is opened, so the extra
memory is one expert's tensors.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from xpu_moe.formats import gptq, int4
from xpu_moe.formats.quantization import Int4Spec, UnsupportedCheckpoint, read_int4

INDEX = "model.safetensors.index.json"


class Checkpoint:
    """A folder of safetensors with its config; opens a shard when a tensor of it is asked for."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self.config: dict[str, Any] = json.loads((self.folder / "config.json").read_text(encoding="utf-8"))
        index = self.folder / INDEX
        self._shards: dict[str, Any] = {}
        if index.exists():
            self.files: dict[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        else:
            self.files = dict.fromkeys(self._open("model.safetensors").keys(), "model.safetensors")

    def _open(self, file: str) -> Any:
        if file not in self._shards:
            if Path(file).name != file or not file.endswith(".safetensors"):
                raise UnsupportedCheckpoint(f"{INDEX}: got file {file!r}, wanted a .safetensors file of this folder")
            path = self.folder / file
            if not path.exists():
                raise UnsupportedCheckpoint(f"{file}: named in {INDEX}, missing in {self.folder}")
            self._shards[file] = safe_open(path, framework="pt")
        return self._shards[file]

    def tensor(self, name: str) -> torch.Tensor:
        """The whole tensor. Raises UnsupportedCheckpoint when the checkpoint has none of this name."""
        if name not in self.files:
            raise UnsupportedCheckpoint(f"{name}: missing in {self.folder}")
        return self._open(self.files[name]).get_tensor(name)


def load_layer(
    checkpoint: Checkpoint | Path | str,
    layer: int,
    *,
    tp: int = 1,
    rank: int = 0,
    progress: Callable[[int], None] | None = None,
) -> int4.Int4MoeWeights:
    """The experts of one layer for one rank, as canonical u4.

    `tp` must divide the expert width into whole groups. `progress(expert)` is called after each expert. Raises
    UnsupportedCheckpoint naming the tensor or field.
    """
    source = checkpoint if isinstance(checkpoint, Checkpoint) else Checkpoint(checkpoint)
    spec = read_int4(source.config.get("quantization_config", {}))
    hidden, width = source.config["hidden_size"], source.config["intermediate_size"]
    experts = source.config["num_local_experts"]
    if width % tp or (width // tp) % spec.group_size:
        raise UnsupportedCheckpoint(
            f"intermediate_size {width} at tp {tp}: got {width / tp:g} a rank, "
            f"wanted a multiple of group_size {spec.group_size}"
        )
    share = width // tp
    weights = int4.empty(experts, hidden, share, spec.group_size)
    for expert in range(experts):
        base = f"model.layers.{layer}.block_sparse_moe.experts.{expert}"
        for half, name in enumerate(("w1", "w3")):
            rows, scale = _linear(source, f"{base}.{name}", width, hidden, spec)
            part = slice(rank * share, (rank + 1) * share)
            weights.w13[expert, half * share : (half + 1) * share] = rows[part]
            weights.w13_scale[expert, half * share : (half + 1) * share] = scale[part]
        rows, scale = _linear(source, f"{base}.w2", hidden, width, spec)
        weights.w2[expert] = rows[:, rank * share // 2 : (rank + 1) * share // 2]
        groups = share // spec.group_size
        weights.w2_scale[expert] = scale[:, rank * groups : (rank + 1) * groups]
        if progress is not None:
            progress(expert)
    return weights


def _linear(
    source: Checkpoint, base: str, rows: int, columns: int, spec: Int4Spec
) -> tuple[torch.Tensor, torch.Tensor]:
    """(uint8 [N, K/2], scales [N, K/group]) of one linear, checked."""
    qweight, scales = source.tensor(f"{base}.qweight"), source.tensor(f"{base}.scales")
    gptq.check_shapes(base, qweight, scales, rows, columns, spec.group_size)
    if f"{base}.qzeros" in source.files:
        gptq.check_symmetric(f"{base}.qzeros", source.tensor(f"{base}.qzeros"), spec.zero_point)
    if f"{base}.g_idx" in source.files:
        gptq.check_order(f"{base}.g_idx", source.tensor(f"{base}.g_idx"), spec.group_size)
    return gptq.rows_from_qweight(qweight), scales.t()
