"""Every Triton kernel that an Intel card is offered, compiled for a B70 that is not there: Intel's Triton to SPIR-V,
Intel's current compiler to machine code, and Intel's driver that builds the same at run time."""

from __future__ import annotations

import sys

import pytest

from tests.triton import battlemage
from xpu_moe import toolenv

pytestmark = pytest.mark.soak

# Bytes a thread, the most that was found (docs/measurements/bmg-g31-triton.md): 12 registers of 64 bytes. A thread's
# loop of 24 or 96 turns fills and reads them once a turn.
MOST_SPILLED = 768
MOST_SLM = 32 << 10  # four groups at least on an Xe core's 128 KiB
SORTING = {"count_routes", "scan_tiles", "place_routes"}


def made(folder, *more: str) -> dict:
    try:
        return battlemage.compiled(folder, *more)
    except toolenv.ToolEnvironmentError as error:
        pytest.skip(f"Intel's Triton: {str(error).splitlines()[-1]}")


@pytest.fixture(scope="module")
def report(tmp_path_factory, driver):
    return made(tmp_path_factory.mktemp("battlemage"))


@pytest.fixture(scope="module")
def launches(report):
    return battlemage.launches(report)


def test_intel_s_triton_is_known_and_stays_in_its_process(report):
    version = battlemage.TRITON.partition("==")[2].removesuffix("b1")
    products = dict.fromkeys(("moe_u4", "moe_fp8_block", "moe_fp8_tensor"), "grouped products, any M")
    norms = dict.fromkeys(("qk_rms_partial", "qk_rms_apply"), "one launch, a program a row")
    assert report["offered"].keys() == {**products, **norms}.keys()
    for op, words in {**products, **norms}.items():
        assert report["offered"][op].startswith(f"Triton {version}") and words in report["offered"][op]
    assert "triton" not in sys.modules


def test_every_kernel_of_every_case_becomes_machine_code(launches):
    of_case: dict[tuple, set[str]] = {}
    for one in launches:
        of_case.setdefault((one.case, one.tokens, one.inter, one.dtype), set()).add(one.kernel)
        assert one.code.name == one.kernel and one.code.instructions > 50, one
    product = SORTING | {"up", "down", "combine"}
    assert {frozenset(kernels) for kernels in of_case.values()} == {frozenset(product), frozenset(("partial", "apply"))}
    schemes = {case.partition(",")[0] for case, *_ in of_case}
    assert schemes == {"int4", "fp8_block", "fp8_tensor", "Q/K norm"} and len(of_case) == 17


def on_the_matrix_engine(one: battlemage.Launch) -> bool:
    """Both operands of every product in 16 bits, and dpas in the text and in the machine code."""
    kinds = {operand.rpartition("x")[2] for dot in one.dots for operand in dot}
    want = {"float16": "f16", "bfloat16": "bf16"}.get(one.dtype)
    return kinds == {want} and one.matrix_engine and one.lanes == 16 and one.code.dpas >= 16


def test_the_products_run_on_the_matrix_engine(launches):
    products = [one for one in launches if one.product]
    assert len(products) == 30
    assert [str(one) for one in products if not on_the_matrix_engine(one)] == []


def test_no_thread_spills_more_than_was_recorded(launches):
    assert {str(one): one.code.spill_bytes for one in launches if one.code.spill_bytes > MOST_SPILLED} == {}
    assert {str(one): one.slm for one in launches if one.slm > MOST_SLM or one.code.slm_bytes} == {}
    assert not any(one.code.stack_calls for one in launches)
    assert all(one.code.grf == 128 for one in launches if not one.product)


def test_intel_s_driver_takes_them(launches, driver):
    """At run time a module goes to the driver and not to ocloc: the kernels of the first case, through Level Zero."""
    first = [one for one in launches if one.case == "int4" and one.tokens == 2048 and one.dtype == "float16"][:6]
    taken = battlemage.taken_by_the_driver(driver, first)
    assert {one.kernel for one in first} == SORTING | {"up", "down", "combine"}
    assert taken.keys() == {one.spirv for one in first} and all(count >= 3 for count in taken.values())


def test_the_checks_can_fail(tmp_path, driver):
    """CUDA's tiles spill, and float32 leaves the matrix engine."""
    planted = [one for one in battlemage.launches(made(tmp_path, "--planted")) if one.product]
    half, single = (
        [one for one in planted if one.dtype == dtype and one.kernel == "up"] for dtype in ("float16", "float32")
    )
    assert len(half) == len(single) == 1
    assert on_the_matrix_engine(half[0]) and half[0].code.grf == 256
    assert half[0].code.spill_bytes > 10 * MOST_SPILLED
    assert not on_the_matrix_engine(single[0]) and single[0].code.dpas == 0
