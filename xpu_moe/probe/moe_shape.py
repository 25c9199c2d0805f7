"""What `probe moe` measures, and how exact it must be. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass

# ||out - truth|| / ||truth||: float32 accumulation, one rounding of the output.
TOLERANCE = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 1e-5}


@dataclass(frozen=True)
class Shape:
    """One layer's call. `intermediate_size` is the whole model's, divided by `tp` for the rank that is measured."""

    tokens: int
    hidden_size: int
    intermediate_size: int
    tp: int
    num_experts: int
    top_k: int
    group_size: int
    dtype: str
    nibble: str
    activation: str
    routed: bool

    @property
    def inter(self) -> int:
        """Of the rank."""
        return self.intermediate_size // self.tp
