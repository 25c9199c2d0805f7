"""`route_and_quant_fp8`: the router's top-k and the e4m3 quantisation of the activations, in one call.

Routing is `route_sigmoid_topk`'s (same choice, ties and odd inputs). Quantisation is per token and per group of
`group_size` values along the hidden size:

    s = max(amax, 1e-10) / 448             amax over the group's valid values, NaN ignored
    s = the power of two at or above s     with `scale_ue8m0`, taken from the bits
    q = e4m3(x / s)                        a true division, round to nearest even

Defined for every input: a NaN becomes the e4m3 NaN 0x7f; a group with an infinity has scale inf, its finite values
code 0, the infinities NaN. The hidden size need be no multiple of the group: the last group's scale is taken over its
valid values, and x_q has whole groups (or `padded_hidden_size` columns), code 0 beyond the hidden size.
Formula: vLLM's per_token_group_quant_fp8 (eps 1e-10).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, NoReturn

import torch
from torch import is_grad_enabled
from torch.compiler import is_compiling

from xpu_moe import device
from xpu_moe.ops import checks
from xpu_moe.ops.contract import Case, Selection, select
from xpu_moe.ops.library import define
from xpu_moe.ops.prepared import ROW_MAJOR, SCALE_LAYOUTS, PreparedInputs, aligned_tokens
from xpu_moe.ops.route_sigmoid_topk import check as check_route
from xpu_moe.ops.route_sigmoid_topk import check_weighing

FP8_MAX = 448.0
EPSILON = 1e-10
GROUP_SIZES = (32, 64, 128, 256)
_FLOATS = (torch.bfloat16, torch.float16, torch.float32)


class Routed(NamedTuple):
    """What the operator writes: topk_weights float32 [M, k], topk_ids int32 [M, k], x_q e4m3 [M, padded hidden size],
    x_scale float32 [M, groups] in the order that `scale_layout` names."""

    topk_weights: torch.Tensor
    topk_ids: torch.Tensor
    x_q: torch.Tensor
    x_scale: torch.Tensor


class Options(NamedTuple):
    """The keywords of a call, hashable."""

    top_k: int
    renormalize: bool = True
    scale: float = 1.0
    group_size: int = 128
    scale_layout: str = ROW_MAJOR
    scale_ue8m0: bool = False
    padded_hidden_size: int = 0

    def padded(self, hidden_size: int) -> int:
        """Columns of x_q: whole groups unless a number was named."""
        return self.padded_hidden_size or -(-hidden_size // self.group_size) * self.group_size

    def groups(self, hidden_size: int) -> int:
        """Columns of x_scale."""
        return -(-self.padded(hidden_size) // self.group_size)


Runner = Callable[[torch.Tensor, torch.Tensor, "torch.Tensor | None", "Routed | None"], Routed]


def case_of(x: torch.Tensor, logits: torch.Tensor, options: Options) -> Case:
    """The `Case` of a call: `scheme` tells the scales' format, `layout` their order."""
    kind = x.device.type
    return Case(
        op="route_and_quant_fp8",
        device=kind,
        architecture=device.architecture(kind),
        dtype=checks.dtype_name(x),
        tokens=x.shape[0],
        min_tokens=x.shape[0],
        hidden_size=x.shape[1],
        num_experts=logits.shape[1],
        top_k=options.top_k,
        group_size=options.group_size,
        scheme="ue8m0" if options.scale_ue8m0 else "fp32",
        layout=options.scale_layout,
    )


def check(x: torch.Tensor, logits: torch.Tensor, bias: torch.Tensor | None, options: Options) -> None:
    """Raise BadArgument unless the arguments fit together."""
    checks.rank("x", x, 2)
    checks.dtype("x", x, *_FLOATS)
    checks.inference_only(x=x)
    check_route(logits, bias, options.top_k)
    check_weighing(options.renormalize, options.scale)
    checks.flag("scale_ue8m0", options.scale_ue8m0)
    checks.whole("group_size", options.group_size)
    checks.whole("padded_hidden_size", options.padded_hidden_size)
    checks.require(logits.shape[0] == x.shape[0], "logits.shape[0]", logits.shape[0], f"{x.shape[0]}, the rows of x")
    checks.same_device({"x": x, "logits": logits})
    for name, tensor in (("x", x), ("logits", logits)):
        wanted = "1: rows may be strided, columns may not; call .contiguous()"
        checks.require(tensor.shape[1] <= 1 or tensor.stride(1) == 1, f"{name}.stride(1)", tensor.stride(1), wanted)
    if bias is not None:
        checks.require(bias.stride(0) == 1 or len(bias) <= 1, "bias.stride(0)", bias.stride(0), 1)
    sizes = " or ".join(map(str, GROUP_SIZES))
    checks.require(options.group_size in GROUP_SIZES, "group_size", options.group_size, sizes)
    checks.one_of("scale_layout", options.scale_layout, SCALE_LAYOUTS)
    hidden, padded = x.shape[1], options.padded(x.shape[1])
    checks.require(hidden >= 1, "x.shape[1]", hidden, "at least 1")
    checks.require(padded >= hidden, "padded_hidden_size", padded, f"at least the hidden size {hidden}")


def empty(x: torch.Tensor, options: Options) -> Routed:
    """The output tensors of a call, uninitialised."""
    tokens, hidden = x.shape
    groups = options.groups(hidden)
    if options.scale_layout == ROW_MAJOR:
        scales = torch.empty((tokens, groups), dtype=torch.float32, device=x.device)
    else:
        rows = aligned_tokens(tokens)
        scales = torch.empty_strided((rows, groups), (1, rows), dtype=torch.float32, device=x.device)[:tokens]
    return Routed(
        torch.empty((tokens, options.top_k), dtype=torch.float32, device=x.device),
        torch.empty((tokens, options.top_k), dtype=torch.int32, device=x.device),
        torch.empty((tokens, options.padded(hidden)), dtype=torch.float8_e4m3fn, device=x.device),
        scales,
    )


def check_out(x: torch.Tensor, options: Options, out: Routed) -> None:
    """Raise BadArgument unless `out` is what `empty` would make (x_scale's and x_q's rows may be strided)."""
    if not isinstance(out, Routed):
        raise checks.BadArgument(f"out: got {type(out).__name__}, wanted Routed")
    tokens, groups = x.shape[0], options.groups(x.shape[1])
    for name, columns, kind in (
        ("topk_weights", options.top_k, torch.float32), ("topk_ids", options.top_k, torch.int32),
        ("x_q", options.padded(x.shape[1]), torch.float8_e4m3fn), ("x_scale", groups, torch.float32),
    ):  # fmt: skip
        field, tensor = f"out.{name}", getattr(out, name)
        checks.shape(field, tensor, (tokens, columns))
        checks.dtype(field, tensor, kind)
        if tensor.device != x.device:
            checks.same_device({"x": x, field: tensor})
        checks.separate(field, tensor)
    checks.require(out.x_q.shape[1] == 1 or out.x_q.stride(1) == 1, "out.x_q.stride(1)", out.x_q.stride(1), 1)
    for name in ("topk_weights", "topk_ids"):
        checks.require(getattr(out, name).is_contiguous(), f"out.{name}", "strided", "contiguous")
    if tokens and groups > 1:
        wanted = (groups, 1) if options.scale_layout == ROW_MAJOR else (1, aligned_tokens(tokens))
        strides = out.x_scale.stride()
        good = strides[1] == 1 if options.scale_layout == ROW_MAJOR else strides == wanted
        checks.require(good, "out.x_scale.stride()", strides, f"{wanted}, the {options.scale_layout} layout")


def selection(x: torch.Tensor, logits: torch.Tensor, options: Options) -> Selection:
    """Which backend a call takes, and why."""
    return select(case_of(x, logits, options))


# What was checked and selected before: the eager path pays for neither again (`settings`: the values of Options).
_RUNNERS: dict[tuple, Runner] = {}


def _runner(x: torch.Tensor, logits: torch.Tensor, bias: torch.Tensor | None, settings: tuple) -> Runner:
    try:
        key = (
            x.shape, x.stride(), x.dtype, x.device, logits.shape, logits.stride(), logits.dtype, logits.device,
            None if bias is None else (bias.shape, bias.stride(), bias.dtype, bias.device), settings,
        )  # fmt: skip
        found = _RUNNERS.get(key)
        if is_grad_enabled() and (x.requires_grad or logits.requires_grad or (bias is not None and bias.requires_grad)):
            found = None
    except (AttributeError, TypeError, RuntimeError):  # no (dense) tensor, an option that is a list: the checks name it
        check(x, logits, bias, Options(*settings))
        raise
    if found is None:
        options = Options(*settings)
        check(x, logits, bias, options)
        backend = selection(x, logits, options).backend
        found = backend.bind(x, logits, bias, options)  # type: ignore[attr-defined]
        if len(_RUNNERS) >= 4096:
            _RUNNERS.clear()
        _RUNNERS[key] = found
    return found


def route_and_quant_fp8(
    x: torch.Tensor, logits: torch.Tensor, bias: torch.Tensor | None, top_k: int, *, renormalize: bool = True,
    scale: float = 1.0, group_size: int = 128, scale_layout: str = ROW_MAJOR, scale_ue8m0: bool = False,
    padded_hidden_size: int = 0, out: Routed | None = None,
) -> Routed:  # fmt: skip
    """Route M tokens and quantise them.

    x [M, H] bf16/fp16/fp32 and logits [M, E] fp32/fp16/bf16, rows may be strided; bias [E] or None. Returns `Routed`
    (in `out` where given). `padded_hidden_size` is the number of columns of x_q (0 = whole groups). Raises BadArgument
    for arguments that do not fit, NoBackend when none serves the case.
    """
    settings = (top_k, renormalize, scale, group_size, scale_layout, scale_ue8m0, padded_hidden_size)
    whole = type(top_k) is int and type(group_size) is int and type(padded_hidden_size) is int
    if whole and type(x) is torch.Tensor and not is_compiling():
        runner = _runner(x, logits, bias, settings)
        if out is not None:
            check_out(x, Options(*settings), out)
        return runner(x, logits, bias, out)
    options = Options(*settings)
    check(x, logits, bias, options)
    if out is None:
        return Routed(*torch.ops.xpu_moe.route_and_quant_fp8(x, logits, bias, *options))
    check_out(x, options, out)
    torch.ops.xpu_moe.route_and_quant_fp8_out(x, logits, bias, *options, *out)
    return out


class Plan:
    """A call of fixed shapes with outputs of its own: `plan(x, logits, bias)` writes `plan.out` and returns it.

    For callers that make the same call again and again (a decode step outside a graph): the checks, the choice of the
    backend and the outputs are settled once, and a call compares shapes, dtypes and strides only.
    """

    def __init__(
        self, x: torch.Tensor, logits: torch.Tensor, bias: torch.Tensor | None, top_k: int, **keywords
    ) -> None:  # fmt: skip
        self.options = Options(top_k, **keywords)
        self._run = _runner(x, logits, bias, self.options)
        self.out = empty(x, self.options)
        self._x_shape, self._x_stride, self._x_dtype, self._device = x.shape, x.stride(), x.dtype, x.get_device()
        self._logits_shape, self._logits_stride, self._logits_dtype = logits.shape, logits.stride(), logits.dtype
        self._x_dense, self._logits_dense = x.is_contiguous(), logits.is_contiguous()  # quicker asked than strides
        self._bias, self._bias_form = bias, _form(bias)

    def __call__(self, x: torch.Tensor, logits: torch.Tensor, bias: torch.Tensor | None) -> Routed:
        """Raises BadArgument for another shape, dtype, stride or device than planned."""
        try:
            if (
                x.shape != self._x_shape
                or logits.shape != self._logits_shape
                or x.dtype is not self._x_dtype
                or logits.dtype is not self._logits_dtype
                or not (x.is_contiguous() if self._x_dense else x.stride() == self._x_stride)
                or not (logits.is_contiguous() if self._logits_dense else logits.stride() == self._logits_stride)
                or x.get_device() != self._device
                or (is_grad_enabled() and (x.requires_grad or logits.requires_grad))
            ):
                self._refuse(x, logits)
        except (AttributeError, RuntimeError):  # no tensor, or one without strides
            self._refuse(x, logits)
        if bias is not self._bias:
            checks.inference_only(bias=bias if isinstance(bias, torch.Tensor) else None)
            if _form(bias) != self._bias_form:
                if bias is not None:
                    checks.rank("bias", bias, 1)
                raise checks.BadArgument(f"bias: got {_form(bias)}, wanted {self._bias_form} as planned")
            self._bias = bias
        return self._run(x, logits, bias, self.out)

    def _refuse(self, x: torch.Tensor, logits: torch.Tensor) -> NoReturn:
        checks.ranks(x=(x, 2), logits=(logits, 2))
        checks.inference_only(x=x, logits=logits)
        planned_x = (self._x_shape, self._x_dtype, self._x_stride)
        planned = (planned_x, (self._logits_shape, self._logits_dtype, self._logits_stride), self._device)
        got = (_form(x), _form(logits), x.get_device())
        raise checks.BadArgument(f"x, logits: got {got}, wanted {planned} as planned; make a plan for this call")


def _form(tensor: torch.Tensor | None) -> tuple | None:
    try:
        return None if tensor is None else (tensor.shape, tensor.dtype, tensor.stride())
    except (AttributeError, RuntimeError):  # no tensor, or one without strides: no plan is for such a form
        return (type(tensor),)


def prepare_inputs(
    x: torch.Tensor, logits: torch.Tensor, bias: torch.Tensor | None, top_k: int, *, scale_layout: str = ROW_MAJOR,
    scale_ue8m0: bool = False, **more,
) -> PreparedInputs:  # fmt: skip
    """`route_and_quant_fp8` as the object that a block-scaled FP8 layer takes, checked; groups of 128."""
    made = route_and_quant_fp8(x, logits, bias, top_k, scale_layout=scale_layout, scale_ue8m0=scale_ue8m0, **more)
    return PreparedInputs(*made, x.shape[1], scale_layout, scale_ue8m0)


def _run(x, logits, bias, *options):
    given = Options(*options)
    return tuple(_runner(x, logits, bias, given)(x, logits, bias, None))


def _run_out(x, logits, bias, *rest):
    given = Options(*rest[: len(Options._fields)])
    _runner(x, logits, bias, given)(x, logits, bias, Routed(*rest[len(Options._fields) :]))


_ARGUMENTS = (
    "Tensor x, Tensor logits, Tensor? bias, int top_k, bool renormalize, float scale, int group_size, "
    "str scale_layout, bool scale_ue8m0, int padded_hidden_size"
)
_OUT = "Tensor(a!) topk_weights, Tensor(b!) topk_ids, Tensor(c!) x_q, Tensor(d!) x_scale"
define(
    f"route_and_quant_fp8({_ARGUMENTS}) -> (Tensor, Tensor, Tensor, Tensor)",
    lambda x, logits, bias, *options: tuple(empty(x, Options(*options))),
    _run,
)
define(f"route_and_quant_fp8_out({_ARGUMENTS}, {_OUT}) -> ()", lambda *arguments: None, _run_out)
