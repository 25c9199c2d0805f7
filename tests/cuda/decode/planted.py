"""Faults of the decode kernels, planted in their source: what a checker of them has to find."""

from __future__ import annotations

from dataclasses import dataclass, replace

from xpu_moe.cuda.compiler import Program

RACE = "race in shared memory"


@dataclass(frozen=True)
class Planted:
    """`out` of the source becomes `into`. `said`: what the emulation says of it (a pattern)."""

    name: str
    out: str
    into: str
    said: str = RACE
    tokens: int = 4
    bits: int = 4
    row_blocks: int = 4
    wide: bool = False  # a hidden size of which every warp has as many blocks

    def __str__(self) -> str:
        return self.name

    def edit(self, unit: Program) -> Program:
        headers = tuple((name, text.replace(self.out, self.into)) for name, text in unit.headers)
        return replace(unit, headers=headers)


def without(name: str, out: str, said: str = RACE, **more) -> Planted:
    return Planted(name, out, "", said, **more)


PLANTED = (
    without(
        "ring: consumers do not wait for a stage",
        "        barrier_wait(ring.full_barrier(), ring.phase);\n        if (i == 0) stamp(p, 3);",
        f"{RACE}: a read .* a copy",
    ),
    Planted(
        "ring: the producer does not wait for consumers",
        "            barrier_wait(ring.empty_barrier(), ring.phase ^ 1);\n        }\n        if (GATHERERS",
        "        }\n        if (GATHERERS",
        f"{RACE}: a copy .* a read",
    ),
    Planted(
        "ring: a consumer gives a stage back before it has read it",
        "        unit_product(acc, ring.memory(), columns, warp, lane);\n"
        "        warp_arrive(ring.empty_barrier(), lane);",
        "        warp_arrive(ring.empty_barrier(), lane);\n"
        "        unit_product(acc, ring.memory(), columns, warp, lane);",
        f"{RACE}: a copy .* a read",
    ),
    Planted(
        "warps: lanes do not come together before one arrives for them",
        "    __syncwarp();\n    if (STRICT || lane == 0) barrier_arrive(barrier);",
        "    if (STRICT || lane == 0) barrier_arrive(barrier);",
    ),
    without("parts: consumers do not wait for the finishers", "        barrier_wait(empty + buffer * 8, phase ^ 1);\n"),
    without(
        "parts: finishers do not wait for the consumers",
        "            barrier_wait(shared_address(&s.part_full[buffer]), phase);\n",
    ),
    Planted(
        "h: gatherers do not wait for room",
        "        barrier_wait(ring.empty_barrier(), ring.phase ^ 1);\n        for (;;) {",
        "        for (;;) {",
    ),
    without("h: consumers do not wait for the gatherers", "        barrier_wait(h.full_barrier(), h.phase);\n"),
    without(
        "h: a zero is stored as what marks a value that is not there",
        "    if (word[0] == 0) word[0] = 0x80008000u;\n",
        "nobody goes on",
    ),
    Planted(
        "h: what the launch before wrote is not cleared",
        "        old[i] = make_uint4(0, 0, 0, 0);",
        "        (void)old[i];",
        "wrong numbers",
    ),
    Planted(
        "h: lists do not look whether it is there",
        "while (!__all_sync(~0u, is_there(hidden)))",
        "while (false)",
        "wrong numbers",
        tokens=6,
    ),
    # The producer reached this barrier before it was made, in a kernel that had passed every test on a card.
    Planted(
        "start: the producer does not wait for the barriers that others make",
        "if (item == 1 && ONE_WARP) named_sync",
        "if (item == 2 && ONE_WARP) named_sync",
        f"not made yet|{RACE}",
        tokens=2,
        row_blocks=1,
    ),
    without("start: barriers are not made known to the copies", "        fence_barrier_init();\n", "without a fence"),
    Planted(
        "start: nobody waits for the routes",
        "            named_sync<ROUTES_ARE_LISTED, THREADS>();",
        "            named_arrive<ROUTES_ARE_LISTED, THREADS>();",
        f"{RACE}|ends with",
    ),
    Planted(
        "start: every block's first unit is of the first expert",
        "mention.place_of(lane) == place",
        "mention.place_of(lane) == 0",
        f"wrong numbers|{RACE}",
        row_blocks=1,
    ),
    Planted(
        "start: the first unit is asked for twice",
        "begun = ONE_WARP && work.units;",
        "begun = false;",
        "more arrivals",
    ),
    Planted(
        "start: a block without a unit thinks that its first is under way",
        "begun = ONE_WARP && work.units;",
        "begun = ONE_WARP;",
        "nobody goes on",
        row_blocks=1,
    ),
    without(
        "end: sums are read before all warps wrote them",
        "    named_sync<SUMS_ARE_WRITTEN, CONSUMER_THREADS>();\n",
    ),
    Planted(
        "copies: 16 bytes more are waited for than come",
        "barrier_expect(full, UNIT_BYTES + UNIT_SCALES)",
        "barrier_expect(full, UNIT_BYTES + UNIT_SCALES + 16)",
        "nobody goes on",
    ),
    Planted(
        "copies: one begins 16 bytes late",
        "bulk_copy(to, from, UNIT_BYTES",
        "bulk_copy(to, from + 16, UNIT_BYTES",
        "a bulk copy of .* outside every tensor|wrong numbers",
    ),
    Planted(
        "routes: an id out of range is followed",
        "return id >= 0 && id < E ? (int)id : -1;",
        "return (int)id;",
        "outside every tensor|race|wrong numbers",
    ),
    Planted(
        "launch: it does not wait for the one before", "wait_for_predecessor();", ";", "wrong numbers|nobody goes on"
    ),
    # ---- one token (one_token.cuh)
    Planted(
        "one token: consumers do not wait for a unit",
        "        barrier_wait(shared_address(&s.unit_full[i][warp / (CONSUMERS / PIECES)]), 0);\n"
        "        if (i == 0) stamp(p, 3);",
        "        if (i == 0) stamp(p, 3);",
        f"{RACE}: a read .* a copy",
        tokens=1,
    ),
    without(
        "one token: consumers do not wait for W2",
        "            barrier_wait(shared_address(&s.stage_full[d / STAGE_EXPERTS][d % STAGE_EXPERTS]), 0);\n",
        tokens=1,
    ),
    Planted(
        "one token: all wait for the first piece of a unit",
        "[warp / (CONSUMERS / PIECES)]",
        "[0]",
        f"{RACE}: a read .* a copy",
        tokens=1,
        wide=True,
    ),
    Planted(
        "one token: all wait for the first expert of a stage",
        "[d / STAGE_EXPERTS][d % STAGE_EXPERTS]",
        "[d / STAGE_EXPERTS][0]",
        f"{RACE}: a read .* a copy",
        tokens=1,
    ),
    Planted(
        "one token: the first copy is made for routes that are out of range as well",
        "if (valid == EVERY_ROUTE && copies)",
        "if (copies)",
        f"outside every tensor|{RACE}: a copy .* a write|wrong numbers",
        tokens=1,
    ),
    without(
        "one token: the finisher does not wait for the consumers",
        "        barrier_wait(shared_address(&s.part_full[i]), 0);\n",
        tokens=1,
    ),
    without(
        "one token: a zero is stored as what marks a value that is not there",
        "    if (word[0] == 0) word[0] = 0x80008000u;\n",
        "nobody goes on",
        tokens=1,
    ),
    Planted(
        "one token: half of h is waited for",
        "__any_sync(~0u, !is_there(v))",
        "__any_sync(~0u, lane < 8 && !is_there(v))",
        "wrong numbers",
        tokens=1,
    ),
    Planted(
        "one token: nobody looks whether h is there",
        "while (__any_sync(~0u, !is_there(v)))",
        "while (false)",
        "wrong numbers",
        tokens=1,
    ),
    Planted(
        "one token: nobody waits for the list of routes",
        "    named_sync<ROUTES_ARE_LISTED, THREADS>();\n    stamp(p, 2);",
        "    named_arrive<ROUTES_ARE_LISTED, THREADS>();\n    stamp(p, 2);",
        f"{RACE}|ends with",
        tokens=1,
    ),
    Planted(
        "one token: x is read before other lanes have split it",
        "        __syncwarp();\n#pragma unroll\n        for (int o = 0; o < OWN; ++o) {\n            take_bytes",
        "#pragma unroll\n        for (int o = 0; o < OWN; ++o) {\n            take_bytes",
        tokens=1,
    ),
    Planted(
        "one token: half of h is cleared",
        "clear_old(p, s.parity, TOP_K * (I / 8), lane)",
        "clear_old(p, s.parity, TOP_K * (I / 16), lane)",
        "wrong numbers",
        tokens=1,
        row_blocks=1,
    ),
    Planted(
        "one token: 16 bytes more are waited for than come",
        "barrier_expect(barrier, (UNIT_BYTES + UNIT_SCALES) / PIECES)",
        "barrier_expect(barrier, (UNIT_BYTES + UNIT_SCALES) / PIECES + 16)",
        "nobody goes on",
        tokens=1,
    ),
    Planted(
        "one token: a copy begins 16 bytes late",
        "first_from + (u64)expert * copy.expert",
        "first_from + 16 + (u64)expert * copy.expert",
        "a bulk copy of .* outside every tensor|wrong numbers",
        tokens=1,
    ),
    without(
        "one token: sums are read before all warps wrote them",
        "    named_sync<SUMS_ARE_WRITTEN, CONSUMER_THREADS>();\n",
        tokens=1,
    ),
)
