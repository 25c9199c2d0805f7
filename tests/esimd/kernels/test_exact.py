"""Every byte value decodes to its two nibbles, exactly."""

from __future__ import annotations

import numpy as np
import pytest

from xpu_moe.esimd.host import emulate, library
from xpu_moe.esimd.kernels import launch

pytestmark = pytest.mark.slow
BYTES = np.arange(256, dtype=np.uint8)


def values_of(nibbles: np.ndarray, nibble: str) -> np.ndarray:
    signed = nibbles.astype(np.int32)
    return signed - 8 if nibble == "u4" else np.where(signed >= 8, signed - 16, signed)


@pytest.mark.parametrize("nibble", ["u4", "s4"])
@pytest.mark.parametrize("column", [0, 1, 30, 31, 64, 127])
def test_down_decodes_all_bytes(nibble, column):
    """Row h of w2 is byte h, repeated; hidden is 1 in one column: out[h] is that nibble of h."""
    w2 = emulate.aligned(np.repeat(BYTES[:, None], 64, axis=1)[None].copy())
    scale = np.ones((1, 256, 1), np.float16)
    hidden, out = emulate.empty((1, 1, 128), np.float32), emulate.empty((1, 256), np.uint16)
    hidden[...] = 0
    hidden[0, 0, launch.hidden_position(column)] = 1
    shape = launch.down("float16", 1, 256, 128, 1, 128)
    values = {
        "hidden": hidden, "w2": w2, "w2_scale": scale, "topk_ids": np.zeros((1, 1), np.int32),
        "topk_weights": np.ones((1, 1), np.float32), "out": out, "tokens": 1, "hidden_size": 256,
        "intermediate_size": 128, "num_experts": 1, "top_k": 1, "out_stride": 256, "split": shape.split,
        "flags": launch.flags(nibble=nibble),
    }  # fmt: skip
    library.run(shape, "moe_u4_down", values)
    wanted = values_of(BYTES >> 4 if column & 1 else BYTES & 15, nibble)
    assert (emulate.as_float32(out[0], "float16") == wanted).all()


@pytest.mark.parametrize("nibble", ["u4", "s4"])
@pytest.mark.parametrize("column", [0, 1, 31, 255])
def test_up_decodes_all_bytes(nibble, column):
    """Row i of w13 is byte i; x is +-1 in one column: relu(v)^2 of both signs tells v."""
    w13 = emulate.aligned(np.repeat(BYTES[:, None], 128, axis=1)[None].copy())
    scale = np.ones((1, 256, 2), np.float16)
    shape = launch.up("float16", 1, 256, 256, 1, 128, gated=False)
    found = []
    for sign in (1.0, -1.0):
        x, hidden = np.zeros((1, 256), np.float16), emulate.empty((1, 1, 256), np.float32)
        x[0, column] = sign
        values = {
            "x": emulate.aligned(x), "w13": w13, "w13_scale": scale, "topk_ids": np.zeros((1, 1), np.int32),
            "logits": None, "bias": None, "hidden": hidden, "route_weights": None, "route_ids": None, "tokens": 1,
            "hidden_size": 256, "intermediate_size": 256, "num_experts": 1, "top_k": 1, "x_stride": 256,
            "split": shape.split, "flags": launch.flags(nibble=nibble, activation="relu2_no_mul"), "route_scale": 1.0,
        }  # fmt: skip
        library.run(shape, "moe_u4_up", values)
        found.append(hidden[0, 0, [launch.hidden_position(i) for i in range(256)]])
    wanted = values_of(BYTES >> 4 if column & 1 else BYTES & 15, nibble)
    assert (np.sqrt(found[0]) - np.sqrt(found[1]) == wanted).all()
