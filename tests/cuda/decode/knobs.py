"""What can be varied in the decode kernels without writing another: sizes of plan.py, constants of the source."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from unittest import mock

from xpu_moe.cuda.compiler import Program
from xpu_moe.cuda.decode import plan as plans
from xpu_moe.cuda.decode.plan import Plan, Shape

PLAN = ("CONSUMERS", "DEPTH", "ONE_TOKEN_PIECES", "FEW_FINISHERS", "FINISHERS", "PARTIALS")  # numbers of plan.py
BY_BITS = ("GATHERERS", "HIDDEN_BUFFERS")  # its tables, by the bits of a weight
STAGE_EXPERTS = "STAGE_EXPERTS"  # the most experts of a stage of W2
SOURCE = {  # (header, its text with {} where the number stands)
    "PAUSE": ("hidden.cuh", "constexpr int PAUSE = {};"),  # ns between two questions for h
    "PIECES": ("kernel.cuh", "constexpr int PIECES = COLUMN_IS_TOKEN ? {} : 1;"),  # copies of a unit of FP8
    "LOOK": ("kernel.cuh", "max(1, work.units - {})"),  # units that are left when gatherers begin to look for h
}
NAMES = (*PLAN, *BY_BITS, STAGE_EXPERTS, *SOURCE)
Setting = Mapping[str, int]


def _fewer(most: int, chosen: Callable[..., int], *sizes: int) -> int:
    return min(most, chosen(*sizes))


@contextmanager
def applied(setting: Setting, bits: int) -> Iterator[None]:
    """plan.py with other numbers. Plans made inside are used inside: some of their properties read the numbers anew."""
    with ExitStack() as stack:
        for name, value in setting.items():
            if name in PLAN:
                stack.enter_context(mock.patch.object(plans, name, value))
            if name in BY_BITS:
                stack.enter_context(mock.patch.dict(getattr(plans, name), {bits: value}))
        if "CONSUMERS" in setting:  # each makes a stage's barrier
            stack.enter_context(mock.patch.object(plans, "MAX_STAGES", min(plans.MAX_STAGES, setting["CONSUMERS"])))
        if STAGE_EXPERTS in setting:
            for name in ("_stage_experts", "_one_token_experts"):
                fewer = partial(_fewer, setting[STAGE_EXPERTS], getattr(plans, name))
                stack.enter_context(mock.patch.object(plans, name, fewer))
        yield


def planned(shape: Shape, size: int, blocks: int) -> Plan:
    """`plan` past its cache, which knows nothing of a setting. Raises NoPlan."""
    return plans.plan.__wrapped__(shape, size, blocks)


def edited(unit: Program, setting: Setting) -> Program:
    """A translation unit with other constants. Raises ValueError for one that the source does not have."""
    headers = dict(unit.headers)
    for name in setting.keys() & SOURCE.keys():
        header, text = SOURCE[name]
        before, _, after = text.partition("{}")
        pattern = f"({re.escape(before)})\\d+({re.escape(after)})"
        headers[header], found = re.subn(pattern, rf"\g<1>{setting[name]}\g<2>", headers[header])
        if not found:
            raise ValueError(f"{name}: {header} has no {text.format('N')!r}: knobs.py is older than the kernel")
    return replace(unit, headers=tuple(headers.items()))
