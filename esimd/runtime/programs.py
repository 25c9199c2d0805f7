"""From a case to its plan: which tensors, which launches, which arguments.

The launch shapes come from the room (kernels/launch.py for ESIMD, twins/launch.py for SIMT), the argument order from
kernels/abi.py; both kinds of kernel have the same argument lists, so that a plan is written once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from xpu_moe.esimd.kernels import abi
from xpu_moe.esimd.kernels import launch as shapes
from xpu_moe.esimd.runtime.plan import AT_LEAST, TOKENS, Argument, Kind, Launch, Plan, Program, Slot, integer, real
from xpu_moe.esimd.runtime.room import Room
from xpu_moe.ops.activation import is_gated, w13_rows

NULL = Argument(Kind.NULL)
ALIGNMENT = 16  # bytes, of activations, weights and scales (abi.py)


@dataclass(frozen=True)
class Moe:
    """What a plan of `moe_u4` or `moe_u4_routed` depends on. `routing`: dtype of the ids (routes given), or of the
    logits and the bias (None without one)."""

    dtype: torch.dtype
    hidden_size: int
    intermediate_size: int
    num_experts: int
    top_k: int
    group_size: int
    nibble: str
    activation: str
    scale_dtype: torch.dtype
    weights_dtype: torch.dtype = torch.float32
    ids_dtype: torch.dtype = torch.int32
    logits_dtype: torch.dtype | None = None
    bias_dtype: torch.dtype | None = None
    renormalize: bool = True
    route_scale: float = 1.0
    limit: int = shapes.MAX_TOKENS

    @property
    def routed(self) -> bool:
        return self.logits_dtype is not None


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def hidden_bytes(moe: Moe, tokens: int) -> int:
    """The part of the workspace that `up` hands to `down`, rounded up so that what follows is aligned."""
    return -(-shapes.hidden_bytes(tokens, moe.top_k, moe.intermediate_size) // 64) * 64


def workspace_bytes(moe: Moe, tokens: int) -> int:
    """Bytes of workspace: the hidden vectors, and where the routing is computed its weights and ids."""
    return hidden_bytes(moe, tokens) + (8 * tokens * moe.top_k if moe.routed else 0)


def arguments(family: str, given: Mapping[str, Argument]) -> tuple[Argument, ...]:
    """A family's arguments in the order of its signature. KeyError names one that is missing; none may be left over."""
    wanted = [argument.name for argument in abi.SIGNATURES[family]]
    if set(given) != set(wanted):
        raise KeyError(f"{family}: arguments {sorted(set(given) ^ set(wanted))} are missing or unknown")
    return tuple(given[name] for name in wanted)


def _submission(family: str, shape: shapes.Launch, given: Mapping[str, Argument]) -> Launch:
    return Launch(shape.kernel, shape.module, shape.groups, shape.local, arguments(family, given))


def _slots(slots: tuple[Slot, ...]) -> dict[str, Argument]:
    return {slot.name: Argument(Kind.TENSOR, index) for index, slot in enumerate(slots)}


def moe_plan(moe: Moe, room: Room, session: str) -> Plan:
    """The plan of `launch_moe_u4`, or of `launch_moe_u4_routed`, for M = 1..limit."""
    slots = _moe_slots(moe)
    programs = {tokens: _moe_program(moe, room, slots, tokens) for tokens in range(1, moe.limit + 1)}
    op = "moe_u4_routed" if moe.routed else "moe_u4"
    return Plan(f"{room.name} {op} on {session}: {moe}", slots, programs)


def _moe_slots(moe: Moe) -> tuple[Slot, ...]:
    experts, hidden, inter, group = moe.num_experts, moe.hidden_size, moe.intermediate_size, moe.group_size
    rows = w13_rows(moe.activation, inter)
    weights = [
        Slot("x", moe.dtype, (TOKENS, hidden), row_stride=True, alignment=ALIGNMENT),
        Slot("w13", torch.uint8, (experts, rows, hidden // 2), alignment=ALIGNMENT),
        Slot("w13_scale", moe.scale_dtype, (experts, rows, hidden // group), alignment=ALIGNMENT),
        Slot("w2", torch.uint8, (experts, hidden, inter // 2), alignment=ALIGNMENT),
        Slot("w2_scale", moe.scale_dtype, (experts, hidden, inter // group), alignment=ALIGNMENT),
    ]
    if moe.routed:
        assert moe.logits_dtype is not None
        routing = [
            Slot("logits", moe.logits_dtype, (TOKENS, experts)),
            Slot("bias", moe.bias_dtype or torch.float32, (experts,), absent=moe.bias_dtype is None),
        ]
    else:
        routing = [
            Slot("topk_weights", moe.weights_dtype, (TOKENS, moe.top_k)),
            Slot("topk_ids", moe.ids_dtype, (TOKENS, moe.top_k)),
        ]
    results = [
        Slot("out", moe.dtype, (TOKENS, hidden), row_stride=True, alignment=ALIGNMENT),
        Slot("workspace", torch.uint8, (AT_LEAST,), alignment=64),
    ]
    return (*weights, *routing, *results)


def _moe_program(moe: Moe, room: Room, slots: tuple[Slot, ...], tokens: int) -> Program:
    tensor = _slots(slots)
    work = tensor["workspace"].value
    kept = hidden_bytes(moe, tokens)
    weights = Argument(Kind.TENSOR, work, kept)
    ids = Argument(Kind.TENSOR, work, kept + 4 * tokens * moe.top_k)
    flags = shapes.flags(
        nibble=moe.nibble, ids_64=not moe.routed and moe.ids_dtype == torch.int64, scale_dtype=_name(moe.scale_dtype),
        activation=moe.activation, weights_dtype="float32" if moe.routed else _name(moe.weights_dtype),
        logits_dtype=_name(moe.logits_dtype or torch.float32), bias_dtype=_name(moe.bias_dtype or torch.float32),
        renormalize=moe.renormalize, logits=moe.routed, bias=moe.bias_dtype is not None,
    )  # fmt: skip
    common = {
        "tokens": integer(tokens), "hidden_size": integer(moe.hidden_size),
        "intermediate_size": integer(moe.intermediate_size), "num_experts": integer(moe.num_experts),
        "top_k": integer(moe.top_k), "flags": integer(flags),
    }  # fmt: skip
    routing = _routing(moe, room, tensor, tokens, flags, weights, ids) if moe.routed else None
    down_routes = {"topk_ids": ids, "topk_weights": weights} if moe.routed else {}
    dtype, group = _name(moe.dtype), moe.group_size
    shape = (dtype, tokens, moe.hidden_size, moe.intermediate_size, moe.top_k, group)
    up, down = room.shapes.up(*shape, gated=is_gated(moe.activation)), room.shapes.down(*shape)
    up_given = {
        **{name: tensor[name] for name in ("x", "w13", "w13_scale")}, **common, "hidden": Argument(Kind.TENSOR, work),
        "x_stride": Argument(Kind.STRIDE, tensor["x"].value), "split": integer(up.split),
        "route_scale": real(moe.route_scale), **(routing.up if routing else _given_routes(tensor)),
    }  # fmt: skip
    down_given = {
        **common, "hidden": Argument(Kind.TENSOR, work), "w2": tensor["w2"], "w2_scale": tensor["w2_scale"],
        "out": tensor["out"], "out_stride": Argument(Kind.STRIDE, tensor["out"].value), "split": integer(down.split),
        **(down_routes or {name: tensor[name] for name in ("topk_ids", "topk_weights")}),
    }  # fmt: skip
    launches = (
        *(routing.first if routing else ()),
        _submission("moe_u4_up", up, up_given),
        _submission("moe_u4_down", down, down_given),
    )
    return Program(launches, workspace_bytes(moe, tokens))


@dataclass(frozen=True)
class _Routing:
    """How a routed program gets its routes: launches in front, and what `up` is given."""

    first: tuple[Launch, ...]
    up: Mapping[str, Argument]


def _given_routes(tensor: Mapping[str, Argument]) -> dict[str, Argument]:
    return {"topk_ids": tensor["topk_ids"], **dict.fromkeys(("logits", "bias", "route_weights", "route_ids"), NULL)}


def _routing(
    moe: Moe, room: Room, tensor: Mapping[str, Argument], tokens: int, flags: int, weights: Argument, ids: Argument
) -> _Routing:
    bias = NULL if moe.bias_dtype is None else tensor["bias"]
    if room.routes_in_up:
        up = {"topk_ids": NULL, "logits": tensor["logits"], "bias": bias, "route_weights": weights, "route_ids": ids}
        return _Routing((), up)
    given = {
        "logits": tensor["logits"], "bias": bias, "weights": weights, "ids": ids, "tokens": integer(tokens),
        "num_experts": integer(moe.num_experts), "top_k": integer(moe.top_k),
        "logits_stride": Argument(Kind.STRIDE, tensor["logits"].value), "flags": integer(flags),
        "route_scale": real(moe.route_scale),
    }  # fmt: skip
    return _Routing(
        (_submission("route_sigmoid_topk", room.shapes.route(tokens), given),), _given_routes({"topk_ids": ids})
    )


@dataclass(frozen=True)
class Route:
    """What a plan of `route_sigmoid_topk` depends on."""

    num_experts: int
    top_k: int
    logits_dtype: torch.dtype
    bias_dtype: torch.dtype | None
    renormalize: bool
    route_scale: float
    limit: int


def route_plan(route: Route, room: Room, session: str) -> Plan:
    """The plan of `launch_route_sigmoid_topk`."""
    slots = (
        Slot("logits", route.logits_dtype, (TOKENS, route.num_experts), row_stride=True),
        Slot("bias", route.bias_dtype or torch.float32, (route.num_experts,), absent=route.bias_dtype is None),
        Slot("weights", torch.float32, (TOKENS, route.top_k)),
        Slot("ids", torch.int32, (TOKENS, route.top_k)),
    )
    tensor = _slots(slots)
    flags = shapes.flags(
        logits_dtype=_name(route.logits_dtype), bias_dtype=_name(route.bias_dtype or torch.float32),
        renormalize=route.renormalize, logits=True, bias=route.bias_dtype is not None,
    )  # fmt: skip

    def program(tokens: int) -> Program:
        given = {
            **tensor, "tokens": integer(tokens), "num_experts": integer(route.num_experts),
            "top_k": integer(route.top_k), "logits_stride": Argument(Kind.STRIDE, 0), "flags": integer(flags),
            "route_scale": real(route.route_scale),
        }  # fmt: skip
        if route.bias_dtype is None:
            given["bias"] = NULL
        return Program((_submission("route_sigmoid_topk", room.shapes.route(tokens), given),))

    programs = {tokens: program(tokens) for tokens in range(1, route.limit + 1)}
    return Plan(f"{room.name} route_sigmoid_topk on {session}: {route}", slots, programs)


@dataclass(frozen=True)
class Rms:
    """What a plan of `qk_rms_partial` or `qk_rms_apply` depends on (`weights_dtype` None: partial)."""

    dtype: torch.dtype
    width: int  # of a row of qkv
    q_size: int
    kv_size: int
    limit: int
    weights_dtype: torch.dtype | None = None
    world_size: int = 1
    eps: float = 0.0


def partial_plan(rms: Rms, room: Room, session: str) -> Plan:
    """The plan of `launch_qk_rms_partial`."""
    slots = (
        Slot("qkv", rms.dtype, (TOKENS, rms.width), row_stride=True, alignment=4),
        Slot("sums", torch.float32, (TOKENS, 2)),
    )

    def program(tokens: int) -> Program:
        given = {**_slots(slots), **_rms_sizes(rms, tokens)}
        return Program((_submission("qk_rms_partial", room.shapes.qk_partial(_name(rms.dtype), tokens), given),))

    programs = {tokens: program(tokens) for tokens in range(1, rms.limit + 1)}
    return Plan(f"{room.name} qk_rms_partial on {session}: {rms}", slots, programs)


def apply_plan(rms: Rms, room: Room, session: str) -> Plan:
    """The plan of `launch_qk_rms_apply`."""
    assert rms.weights_dtype is not None
    slots = (
        Slot("qkv", rms.dtype, (TOKENS, rms.width), row_stride=True, alignment=4),
        Slot("sums", torch.float32, (TOKENS, 2)),
        Slot("q_weight", rms.weights_dtype, (rms.q_size,), alignment=4),
        Slot("k_weight", rms.weights_dtype, (rms.kv_size,), alignment=4),
        Slot("q_out", rms.dtype, (TOKENS, rms.q_size), row_stride=True, alignment=4),
        Slot("k_out", rms.dtype, (TOKENS, rms.kv_size), row_stride=True, alignment=4),
    )
    tensor = _slots(slots)
    flags = integer(shapes.flags(weights_dtype=_name(rms.weights_dtype)))
    shape = (_name(rms.dtype), rms.q_size, rms.kv_size)

    def program(tokens: int) -> Program:
        given = {
            **tensor, **_rms_sizes(rms, tokens), "world_size": integer(rms.world_size), "flags": flags,
            "q_out_stride": Argument(Kind.STRIDE, tensor["q_out"].value),
            "k_out_stride": Argument(Kind.STRIDE, tensor["k_out"].value), "eps": real(rms.eps),
        }  # fmt: skip
        return Program((_submission("qk_rms_apply", room.shapes.qk_apply(shape[0], tokens, *shape[1:]), given),))

    programs = {tokens: program(tokens) for tokens in range(1, rms.limit + 1)}
    return Plan(f"{room.name} qk_rms_apply on {session}: {rms}", slots, programs)


def _rms_sizes(rms: Rms, tokens: int) -> dict[str, Argument]:
    return {
        "tokens": integer(tokens), "q_size": integer(rms.q_size), "kv_size": integer(rms.kv_size),
        "qkv_stride": Argument(Kind.STRIDE, 0),
    }  # fmt: skip
