"""Activations of an expert, and the one definition of "gated"."""

from __future__ import annotations

# name -> gated? A gated expert has 2I rows in w13 (gate, then up); the other has I rows.
#   silu          silu(gate) * up
#   relu2         relu(gate)^2 * up
#   relu2_no_mul  relu(w1 x)^2
#   silu_no_mul   silu(w1 x)
ACTIVATIONS = {"silu": True, "relu2": True, "relu2_no_mul": False, "silu_no_mul": False}


def is_gated(activation: str) -> bool:
    """Whether w13 holds a gate half. ValueError names an unknown activation."""
    try:
        return ACTIVATIONS[activation]
    except KeyError:
        raise ValueError(f"activation: got {activation!r}, wanted one of {', '.join(ACTIVATIONS)}") from None


def w13_rows(activation: str, intermediate_size: int) -> int:
    """Rows of w13 for one expert."""
    return (2 if is_gated(activation) else 1) * intermediate_size
