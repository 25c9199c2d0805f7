"""Which MoE backend serves what on an NVIDIA card: one table, read by the backends' `rank` and by people.

The first row that fits a case names who is asked first, and why. A row prefers; whether a backend can serve is its own
`supports`, and when it cannot the next in order is asked, its reason kept. The choice is made once, by
`ops.contract.select`, and the `Selection` that is returned is what the layer stores and runs.

Reasons name the measurement or the source behind the row (docs/cuda.md has the tables).
"""

from __future__ import annotations

from dataclasses import dataclass

from xpu_moe.ops.activation import is_gated
from xpu_moe.ops.contract import Case

DECODE_U4, DECODE_FP8 = "cuda_u4_decode", "cuda_fp8_decode"
CUTLASS, TRITON = "flashinfer_cutlass", "triton_grouped"
ANY_M = (0, 1 << 30)


@dataclass(frozen=True)
class Rule:
    """None = any. `tokens` is the range of M, both ends included; `activations` are names of ops.activation."""

    scheme: str
    backend: str
    reason: str
    architecture: str | None = "sm_90"
    gated: bool | None = None
    activations: tuple[str, ...] | None = None
    tokens: tuple[int, int] = ANY_M
    prepared: bool | None = None
    preference: str | None = None

    def fits(self, case: Case) -> bool:
        """Whether the whole case lies within this row."""
        return (
            self.scheme == case.scheme
            and self.architecture in (None, case.architecture)
            and self.gated in (None, is_gated(case.activation))
            and (self.activations is None or case.activation in self.activations)
            and self.tokens[0] <= case.min_tokens
            and case.tokens <= self.tokens[1]
            and self.prepared in (None, case.prepared)
            and self.preference in (None, case.preference)
        )


RULES: tuple[Rule, ...] = (
    Rule("int4", DECODE_U4, "one persistent launch is the fastest to M = 64", tokens=(0, 64)),
    Rule("int4", TRITON, "reads the decode kernel's order, so the layer keeps one copy of its weights"),
    Rule("fp8_block", DECODE_FP8, "prepared inputs: one persistent launch", tokens=(0, 64), prepared=True),
    Rule("fp8_block", TRITON, "FlashInfer's block path quantises by itself and cannot take prepared inputs",
         prepared=True),
    Rule("fp8_block", CUTLASS, "latency: TRT-LLM's kernels begin at sm_100, so on sm_90 latency means CUTLASS",
         preference="latency"),
    Rule("fp8_block", CUTLASS, "throughput was asked for", preference="throughput"),
    Rule("fp8_block", TRITON, "block scales under tensor parallelism: Triton first, as vLLM's oracle has it on sm_90"),
    Rule("fp8_tensor", CUTLASS, "latency: TRT-LLM's kernels begin at sm_100, so on sm_90 latency means CUTLASS",
         preference="latency"),
    Rule("fp8_tensor", CUTLASS, "throughput was asked for", preference="throughput"),
    Rule("fp8_tensor", CUTLASS, "relu2 without a gate: CUTLASS over Triton +48 % output tokens (vLLM #27261, H100)",
         gated=False, activations=("relu2_no_mul",)),
    Rule("fp8_tensor", TRITON, "gated per-tensor: the CUTLASS figures at hand grow with every expert (not trusted)"),
    Rule("int4", TRITON, "no kernel of our own for this architecture", architecture=None),
    Rule("fp8_block", TRITON, "no kernel of our own for this architecture", architecture=None),
    Rule("fp8_tensor", TRITON, "no kernel of our own for this architecture", architecture=None),
)  # fmt: skip


def rule(case: Case) -> Rule | None:
    """The row that holds for a case; None where its scheme is not in the table."""
    return next((row for row in RULES if row.fits(case)), None)


def rank(case: Case, backend: str) -> int:
    """0 where the table prefers `backend` for the case (or says nothing), 1 where it prefers another."""
    row = rule(case)
    return 0 if row is None or row.backend == backend else 1


def why(case: Case, backend: str) -> str:
    """The table's reason where it prefers `backend`, else "" (it serves because those before it could not)."""
    row = rule(case)
    return row.reason if row is not None and row.backend == backend else ""
