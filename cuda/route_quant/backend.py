"""The kernel as a backend of `route_and_quant_fp8`, and its routing half as one of `route_sigmoid_topk`."""

from __future__ import annotations

import torch

from xpu_moe.cuda import compiler
from xpu_moe.cuda.route_quant import launch, tuning
from xpu_moe.ops.contract import Case, Support
from xpu_moe.ops.route_and_quant_fp8 import GROUP_SIZES, Options, Routed, Runner

_FIRST = 89  # cvt to e4m3x2 exists from sm_89 on


def _refusal(case: Case, first: int) -> str | None:
    """Why the case cannot be served, None where it can."""
    number = case.architecture.removeprefix("sm_")
    if not number.isdigit() or int(number) < first:
        return f"architecture {case.architecture or 'unknown'!r}: it needs sm_{first} or later"
    if case.num_experts > launch.MAX_EXPERTS:
        return f"num_experts {case.num_experts}: a warp holds at most {launch.MAX_EXPERTS}"
    if not 1 <= case.top_k <= launch.MAX_TOP_K:
        return f"top_k {case.top_k}: a warp selects 1 to {launch.MAX_TOP_K}"
    if not compiler.available():
        return "no NVRTC and no nvcc: the kernel cannot be compiled (torch's CUDA build brings NVRTC)"
    return None


class _Backend:
    op = ""

    def prepare(self, weights, case: Case):
        """No weights."""
        return weights

    def workspace(self, case: Case) -> int:
        return 0


class RouteAndQuant(_Backend):
    """One launch, the grid split by role."""

    name = "cuda_split_grid"
    op = "route_and_quant_fp8"

    def supports(self, case: Case) -> Support:
        reason = _refusal(case, _FIRST)
        if reason is None and case.group_size not in GROUP_SIZES:
            reason = f"group_size {case.group_size}: wanted one of {', '.join(map(str, GROUP_SIZES))}"
        if reason is not None:
            return Support(False, reason)
        return Support(True, f"top-k and quantisation in one launch, grid split by role; {tuning.describe()}")

    def bind(self, x, logits, bias, options: Options) -> Runner:
        """A callable for calls of these shapes, dtypes and strides."""
        return launch.runner(x, logits, bias, options)

    def run(self, x, logits, bias, options: Options, out: Routed | None = None) -> Routed:
        return self.bind(x, logits, bias, options)(x, logits, bias, out)


class Route(_Backend):
    """The routing blocks alone: `redux.sync` top-k, a warp a token."""

    name = "cuda_redux"
    op = "route_sigmoid_topk"

    def supports(self, case: Case) -> Support:
        reason = _refusal(case, 80)  # redux.sync exists from sm_80 on; the e4m3 half is not compiled in
        if reason is not None:
            return Support(False, reason)
        return Support(True, "one warp a token, top_k rounds of redux.sync")

    def run(self, logits, bias, top_k, *, renormalize, scale) -> tuple[torch.Tensor, torch.Tensor]:
        return launch.route(logits, bias, Options(top_k, renormalize, scale))
