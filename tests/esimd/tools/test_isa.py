"""Reading machine code: issue slots, loops, messages. No compiler."""

from __future__ import annotations

import pytest

from xpu_moe.esimd.tools import isa


@pytest.mark.parametrize(
    ("line", "slots"),
    [
        ("mad (16|M0)  acc0.0<1>:f r29.0<1;0>:f r41.0<1;0>:f r37.0<1>:f {Compacted,F@2}", 1),
        ("xor (32|M0)  r4.0<1>:d  r4.0<1;1,0>:d  r113.2<0;1,0>:d", 2),
        ("(W) mov (16|M0) r32.0<2>:w r4.0<1;1,0>:b {I@3}", 1),
        ("mov (16|M0) r2.0<1>:df r4.0<1;1,0>:f", 2),
        ("add (1|M0)  r115.0<1>:q r115.0<0;1,0>:q 128:w", 1),
        ("send.ugm (1|M0) r4 r115 null:0 0x0 0x022CE580 {$3} // wr:1+0, rd:2; load.ugm.d32x32t.a64.st.ca", 1),
        ("(W&f0.0) jmpi L328", 1),
    ],
)
def test_slots_of_an_instruction(line, slots):
    assert isa.slots(line) == slots


ASSEMBLY = """
L0:
    mov (16|M0) r1.0<1>:f 0.0:f
L8:
    mov (16|M0) r2.0<1>:f 0.0:f
L16:
    send.ugm (1|M0) r4 r9 null:0 0x0 0x0 {$3} // wr:1+0, rd:2; load.ugm.d32x32t.a64.st.ca
    send.ugm (1|M0) r6 r9 null:0 0x0 0x0 {$4} // wr:1+0, rd:8; load.ugm.d64x64t.a64.ca.ca
    xor (32|M0) r4.0<1>:d r4.0<1;1,0>:d r3.2<0;1,0>:d
(W&f0.0) jmpi L16
    cmp (1|M0) (lt)f0.1 null<1>:d r1.0<0;1,0>:d r2.0<0;1,0>:d
(W&f0.1) jmpi L8
"""


def test_the_innermost_loop_is_found_and_its_weights_counted():
    (loop,) = isa.loops(ASSEMBLY)
    assert (loop.instructions, loop.slots, loop.weight_bytes) == (4, 5, 128)
    assert loop.slots_per_64_bytes == 2.5
    assert loop.messages == {"load.ugm.d32x32t.a64.st.ca": 1, "load.ugm.d64x64t.a64.ca.ca": 1}


def test_only_streaming_block_loads_count_as_weights():
    assert isa.streamed_bytes("load.ugm.d64x8t.a64.st.ca") == 64
    assert isa.streamed_bytes("load.ugm.d64x64t.a64.ca.ca") == 0
    assert isa.streamed_bytes("load.ugm.d16u32.a64.st.ca") == 0
