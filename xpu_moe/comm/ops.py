"""What a process group's own collective library offers the dispatcher, for every device kind, asked last."""

from __future__ import annotations

import torch

from xpu_moe.comm import group as groups
from xpu_moe.cpu.qk_rms import Apply, Partial
from xpu_moe.ops import qk_rms
from xpu_moe.ops.all_reduce import run as sum_over_ranks
from xpu_moe.ops.contract import Backend, Case, NoBackend, Support, select


class ProcessGroup:
    """The library of the process group (oneCCL through xccl, NCCL, gloo): every size, dtype and world size.

    Calls the group itself: `torch.distributed.all_reduce` spends several microseconds on argument checks and logging,
    which is the price of a tiny message. In place by nature; `out` is filled first where it is another tensor.
    """

    name = "process_group"
    op = "all_reduce"

    def supports(self, case: Case) -> Support:
        return Support(True, "the process group's own library")

    def prepare(self, weights, case: Case):
        return weights

    def workspace(self, case: Case) -> int:
        return 0

    def run(self, x: torch.Tensor, *, world_size: int, group: str, out: torch.Tensor) -> None:
        if out is not x:
            out.copy_(x)
        groups.lookup(group).sum_inplace(out)


class Composed:
    """`allreduce_qk_rms` as three steps: partial kernel, in-place all-reduce of float32 [M, 2], apply kernel."""

    name = "composed"
    op = "allreduce_qk_rms"

    def supports(self, case: Case) -> Support:
        steps = []
        for op in ("qk_rms_partial", "all_reduce", "qk_rms_apply"):
            try:
                steps.append(select(_part(case, op)).name)
            except NoBackend as error:
                return Support(False, f"a step has no backend: {error}")
        return Support(True, "three steps: " + ", ".join(steps))

    def prepare(self, weights, case: Case):
        return weights

    def workspace(self, case: Case) -> int:
        return 0

    def run(self, qkv, q_weight, k_weight, *, q_size, kv_size, eps, world_size, group, q_out, k_out):
        sums = torch.empty((qkv.shape[0], 2), dtype=torch.float32, device=qkv.device)
        qk_rms.run_partial(qkv, q_size, kv_size, sums)
        sum_over_ranks(sums, sums, world_size, group)
        qk_rms.run_apply(qkv, sums, q_weight, k_weight, q_size, kv_size, eps, world_size, q_out, k_out)


class ComposedAddRms:
    """`all_reduce_add_rms` as an all-reduce and torch's add and norm, which compute in float32."""

    name = "composed"
    op = "all_reduce_add_rms"

    def supports(self, case: Case) -> Support:
        return Support(True, "all-reduce, then add and norm in plain torch")

    def prepare(self, weights, case: Case):
        return weights

    def workspace(self, case: Case) -> int:
        return 0

    def run(self, x, residual, weight, *, eps, world_size, group, normed_out, residual_out):
        sum_over_ranks(x, normed_out, world_size, group)
        torch.add(normed_out, residual, out=residual_out)
        if weight.dtype == x.dtype:  # torch's norm is one kernel then; of other dtypes it warns and takes many
            normed_out.copy_(torch.nn.functional.rms_norm(residual_out, weight.shape, weight, eps))
            return
        total = residual_out.float()
        scale = torch.rsqrt(total.square().mean(dim=1, keepdim=True) + eps)
        normed_out.copy_(total * scale * weight.float())


def _part(case: Case, op: str) -> Case:
    """The case of one step. Fields that the step's own `case_of` leaves at their default are reset."""
    if op == "all_reduce":
        return Case(
            op, case.device, case.architecture, "float32", bytes=case.bytes, world_size=case.world_size,
            group=case.group,
        )  # fmt: skip
    applies = op == "qk_rms_apply"
    return Case(
        op, case.device, case.architecture, case.dtype, case.tokens, case.min_tokens, q_size=case.q_size,
        kv_size=case.kv_size, weights_dtype=case.weights_dtype if applies else "float32",
        world_size=case.world_size if applies else 1,
    )  # fmt: skip


BACKENDS: tuple[Backend, ...] = (ProcessGroup(), Composed(), ComposedAddRms(), Partial("torch"), Apply("torch"))
