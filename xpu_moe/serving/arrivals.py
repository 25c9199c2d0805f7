"""Which tensors of a layer's experts a checkpoint brought.

vLLM does not ask that of a quantised model, and copies a tensor of another shape where the two broadcast: what nobody
loaded would be random memory, served as weights.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch

from xpu_moe.formats.quantization import UnsupportedCheckpoint

# of vLLM's load formats: those that fill parameters without asking their loaders
_UNASKED = ("dummy", "sharded_state", "tensorizer")


class Arrivals:
    """The tensors that vLLM's loader has handed to the experts of one layer.

    `shards` are the checkpoint's names of an expert's matrices: w1, w3 (gated) and w2.
    """

    def __init__(self, layer_name: str, num_experts: int, gated: bool, load_format: str) -> None:
        # the checkpoint's name of the layer, which vLLM calls mlp
        self._layer = layer_name.replace(".mlp.experts", ".block_sparse_moe.experts")
        self._experts, self._format = num_experts, load_format
        self._shards = {"w13": ("w1", "w3") if gated else ("w1",), "w2": ("w2",)}
        self._seen: dict[str, set[tuple[int, str]]] = {}

    def watch(
        self, parameter: str, loader: Callable[..., Any] | None, wanted: tuple[int, ...]
    ) -> Callable[..., Any] | None:
        """The loader of `w13_…` or `w2_…`, which notes what arrives; a tensor must have the shape `wanted`, that of
        one matrix on disk. Raises UnsupportedCheckpoint, naming the tensor."""
        if loader is None:
            return None
        seen = self._seen.setdefault(parameter, set())

        @functools.wraps(loader)  # keeps `supports_moe_loading`
        def load(
            param: Any, loaded_weight: torch.Tensor, weight_name: str, shard_id: str, expert_id: int,
            *arguments: Any, **keywords: Any,
        ) -> Any:  # fmt: skip
            if tuple(loaded_weight.shape) != wanted:
                name = self._name(parameter, expert_id, shard_id)
                raise UnsupportedCheckpoint(f"{name}: got shape {tuple(loaded_weight.shape)}, wanted {wanted}")
            seen.add((expert_id, shard_id))
            return loader(param, loaded_weight, weight_name, shard_id, expert_id, *arguments, **keywords)

        return load

    def require(self, parameter: str) -> None:
        """Raise UnsupportedCheckpoint unless every expert's tensors of `parameter` have arrived."""
        seen = self._seen.get(parameter)
        if seen is None or (not seen and self._format in _UNASKED):
            return
        shards = self._shards[parameter.partition("_")[0]]
        missing = [(e, s) for e in range(self._experts) for s in shards if (e, s) not in seen]
        if missing:
            more = f" and {len(missing) - 1} more of the layer" if len(missing) > 1 else ""
            raise UnsupportedCheckpoint(f"{self._name(parameter, *missing[0])}{more}: not in the checkpoint")

    def _name(self, parameter: str, expert: int, shard: str) -> str:
        return f"{self._layer}.{expert}.{shard}.{parameter.partition('_')[2]}"


def check_finite(name: str, scales: torch.Tensor) -> None:
    """Refuse NaN and infinity, an expert (or a matrix) at a time. Raises UnsupportedCheckpoint."""
    for index, scale in enumerate(scales if scales.dim() > 2 else (scales,)):
        if not bool(torch.isfinite(scale).all()):
            where = f"{name}[{index}]" if scales.dim() > 2 else name
            bad = int((~torch.isfinite(scale)).sum())
            raise UnsupportedCheckpoint(f"{where}: {bad} of {scale.numel()} scales are NaN or infinite, or missing")


def on_disk(depth: int, width: int, group_size: int, per_word: int) -> Mapping[str, tuple[int, ...]]:
    """Shapes of a GPTQ-packed matrix of `depth` (K) x `width` (N)."""
    groups = depth // group_size
    return {
        "qweight": (depth // per_word, width),
        "scales": (groups, width),
        "qzeros": (groups, width // per_word),
        "g_idx": (depth,),
    }
