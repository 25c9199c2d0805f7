"""`moe_fp8_tensor`: a mixture-of-experts layer on e4m3 weights with one scale an expert (and static input scales).

    out[m] = sum over k of topk_weights[m, k] * W2[e] @ act(W13[e] @ x[m]),   e = topk_ids[m, k]

The weights travel as one object (`Fp8TensorWeights`), with every quantisation parameter that any backend wants,
computed the same way whoever serves the layer: a backend may ignore some.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from xpu_moe import device
from xpu_moe.ops import checks
from xpu_moe.ops.activation import ACTIVATIONS, is_gated, w13_rows
from xpu_moe.ops.contract import Case, Selection, select

MAX_E4M3 = 448.0
_FLOATS = (torch.float16, torch.bfloat16, torch.float32)
_fitted = checks.Fitted()


@dataclass(frozen=True)
class Fp8TensorWeights:
    """One layer: w13 e4m3 [E, 2I or I, H], w2 e4m3 [E, H, I], float32 scales w13_scale [E] (gate and up share it:
    `requantized` makes it so), w2_scale [E], a1_scale and a2_scale [] (static scales of x and of the intermediate).
    `layout` "n_major": [gate; up]; "up_gate": FlashInfer's order. `intermediate_size` counts the padding."""

    w13: torch.Tensor
    w13_scale: torch.Tensor
    w2: torch.Tensor
    w2_scale: torch.Tensor
    a1_scale: torch.Tensor
    a2_scale: torch.Tensor
    activation: str
    layout: str = "n_major"

    def __post_init__(self) -> None:
        checks.one_of("activation", self.activation, ACTIVATIONS)
        checks.ranks(w13=(self.w13, 3), w2=(self.w2, 3))
        checks.dtype("w13", self.w13, torch.float8_e4m3fn)
        checks.dtype("w2", self.w2, torch.float8_e4m3fn)
        experts, hidden, inter = self.w2.shape
        checks.shape("w13", self.w13, (experts, w13_rows(self.activation, inter), hidden))
        for name in ("w13_scale", "w2_scale"):
            checks.shape(name, getattr(self, name), (experts,))
        for name in ("a1_scale", "a2_scale"):
            checks.shape(name, getattr(self, name), ())
        for name in ("w13_scale", "w2_scale", "a1_scale", "a2_scale"):
            checks.dtype(name, getattr(self, name), torch.float32)

    @property
    def intermediate_size(self) -> int:
        return self.w2.shape[2]

    def parameters(self) -> dict[str, torch.Tensor]:
        """The derived set, the same for every backend: g1_alphas, g2_alphas [E]; a1_inverse, a2_inverse []."""
        return {
            "g1_alphas": self.w13_scale * self.a1_scale,
            "g2_alphas": self.w2_scale * self.a2_scale,
            "a1_inverse": 1.0 / self.a1_scale,
            "a2_inverse": 1.0 / self.a2_scale,
        }


def requantized(
    w13: torch.Tensor, gate_up_scale: torch.Tensor, w2: torch.Tensor, w2_scale: torch.Tensor, a1_scale: torch.Tensor,
    a2_scale: torch.Tensor, activation: str,
) -> Fp8TensorWeights:  # fmt: skip
    """Weights whose gate and up halves have scales of their own (`gate_up_scale` [E, 2]) -> one scale an expert.

    The larger of the two stays; the other half is requantised in place, an expert at a time. Not gated: [E, 1] or [E].
    """
    gated = is_gated(activation)
    scale = gate_up_scale.float().reshape(w13.shape[0], -1)
    checks.require(scale.shape[1] == (2 if gated else 1), "gate_up_scale.shape", tuple(gate_up_scale.shape),
                   "[E, 2]" if gated else "[E]")  # fmt: skip
    largest = scale.amax(1)
    if gated:
        half = w13.shape[1] // 2
        for expert in range(w13.shape[0]):
            for part in range(2):
                if scale[expert, part] != largest[expert]:
                    rows = w13[expert, part * half : (part + 1) * half]
                    ratio = (scale[expert, part] / largest[expert]).item()
                    rows.copy_((rows.float() * ratio).clamp(-MAX_E4M3, MAX_E4M3).to(torch.float8_e4m3fn))
    return Fp8TensorWeights(w13, largest, w2, w2_scale.float(), a1_scale.float(), a2_scale.float(), activation)


def padded(weights: Fp8TensorWeights, multiple: int) -> Fp8TensorWeights:
    """I rounded up to `multiple` with zero rows and columns (no result changes); as it is where it fits."""
    experts, hidden, inter = weights.w2.shape
    wanted = -(-inter // multiple) * multiple
    if wanted == inter:
        return weights
    parts = 2 if is_gated(weights.activation) else 1
    w13 = torch.zeros(experts, parts, wanted, hidden, dtype=torch.uint8, device=weights.w13.device)
    w2 = torch.zeros(experts, hidden, wanted, dtype=torch.uint8, device=weights.w2.device)
    for expert in range(experts):
        w13[expert, :, :inter] = weights.w13[expert].view(torch.uint8).view(parts, inter, hidden)
        w2[expert, :, :inter] = weights.w2[expert].view(torch.uint8)
    kind = torch.float8_e4m3fn
    return replace(weights, w13=w13.view(experts, parts * wanted, hidden).view(kind), w2=w2.view(kind))


def swapped(weights: Fp8TensorWeights) -> Fp8TensorWeights:
    """[gate; up] <-> [up; gate], in place, an expert at a time; nothing to do where the activation is not gated."""
    if not is_gated(weights.activation):
        return weights
    swap_halves(weights.w13)
    return replace(weights, layout="up_gate" if weights.layout == "n_major" else "n_major")


def swap_halves(tensor: torch.Tensor) -> None:
    """The two halves of dimension 1 change places, in the same storage, an expert at a time."""
    half = tensor.shape[1] // 2
    raw = tensor.view(torch.uint8) if tensor.dtype == torch.float8_e4m3fn else tensor
    for expert in range(tensor.shape[0]):
        first = raw[expert, :half].clone()
        raw[expert, :half].copy_(raw[expert, half:])
        raw[expert, half:].copy_(first)


def case_of(x: torch.Tensor, weights: Fp8TensorWeights, topk_weights: torch.Tensor, topk_ids: torch.Tensor) -> Case:
    """The `Case` of a call."""
    kind = x.device.type
    return Case(
        op="moe_fp8_tensor",
        device=kind,
        architecture=device.architecture(kind),
        dtype=checks.dtype_name(x),
        tokens=x.shape[0],
        min_tokens=x.shape[0],
        hidden_size=x.shape[1],
        intermediate_size=weights.intermediate_size,
        num_experts=weights.w2.shape[0],
        top_k=topk_ids.shape[1],
        activation=weights.activation,
        scheme="fp8_tensor",
        layout=weights.layout,
        weights_dtype=checks.dtype_name(topk_weights),
    )


def check(x: torch.Tensor, weights: Fp8TensorWeights, topk_weights: torch.Tensor, topk_ids: torch.Tensor) -> None:
    """Raise BadArgument unless the arguments fit together; `weights` did when it was made."""
    if not isinstance(weights, Fp8TensorWeights):
        raise checks.BadArgument(f"weights: got {type(weights).__name__}, wanted Fp8TensorWeights")
    w = weights
    tensors = (x, topk_weights, topk_ids, w.w13, w.w13_scale, w.w2, w.w2_scale, w.a1_scale, w.a2_scale)
    if _fitted.knows(tensors):
        return
    checks.ranks(x=(x, 2), topk_weights=(topk_weights, 2), topk_ids=(topk_ids, 2))
    parts = {name: getattr(w, name) for name in ("w13", "w13_scale", "w2", "w2_scale", "a1_scale", "a2_scale")}
    checks.inference_only(x=x, topk_weights=topk_weights, **parts)
    checks.shape("x", x, (x.shape[0], w.w2.shape[1]))
    checks.dtype("x", x, *_FLOATS)
    checks.shape("topk_weights", topk_weights, tuple(topk_ids.shape))
    checks.dtype("topk_weights", topk_weights, *_FLOATS)
    checks.dtype("topk_ids", topk_ids, torch.int32, torch.int64)
    checks.require(topk_ids.shape[0] == x.shape[0], "topk_ids.shape[0]", topk_ids.shape[0], f"{x.shape[0]}, M")
    checks.same_device({"x": x, "topk_weights": topk_weights, "topk_ids": topk_ids, **parts})
    _fitted.add(tensors)


def selection(x, weights, topk_weights, topk_ids, **_: object) -> Selection:
    """Which backend `moe_fp8_tensor` takes for these arguments, and why."""
    return select(case_of(x, weights, topk_weights, topk_ids))


def moe_fp8_tensor(
    x: torch.Tensor, weights: Fp8TensorWeights, topk_weights: torch.Tensor, topk_ids: torch.Tensor, *,
    out: torch.Tensor | None = None, workspace: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """One MoE layer on per-tensor FP8 weights: x fp16/bf16 [M, H] -> [M, H]. Raises BadArgument, NoBackend."""
    check(x, weights, topk_weights, topk_ids)
    checks.workspace(workspace, x)
    if out is None:
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    else:
        checks.output(out, x)
    if x.shape[0] == 0:
        return out
    backend = select(case_of(x, weights, topk_weights, topk_ids)).backend
    return backend.run(x, weights, topk_weights, topk_ids, out=out, workspace=workspace)
