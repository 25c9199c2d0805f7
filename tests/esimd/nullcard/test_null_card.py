"""Machine code for Battlemage by Intel's current compiler, and our launches through Intel's current driver."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.esimd.nullcard.on_card import answer
from xpu_moe.esimd import driver as tool
from xpu_moe.esimd.kernels import instances
from xpu_moe.esimd.nullcard import card
from xpu_moe.esimd.runtime.room import ESIMD, TWINS
from xpu_moe.esimd.tools import gates, programs

pytestmark = pytest.mark.soak
CASES = Path(__file__).with_name("null_card_cases.py")


@pytest.mark.parametrize("device", ("bmg-g31", "bmg-g21"))
def test_every_kernel_holds_its_bounds_in_battlemage_s_machine_code(driver, device):
    """No spills, no scratch, 128 registers, block messages for weights; <= 64 slots per 64 bytes for up and down."""
    assert Path(programs.back_end(device)["ocloc"].path).is_relative_to(driver.root) or not programs.answer(
        programs.find("ocloc").path, device
    )
    kernels = gates.compile_all(device)
    instance_of = {i.name: i for module in instances.modules().values() for i in module.instances}
    assert set(kernels) == set(instance_of)
    failures = [f for name, kernel in kernels.items() for f in gates.check(kernel, instance_of[name])]
    unlike_the_checked(failures)
    assert failures == []
    for shape in gates.BOUNDED:
        assert kernels[shape.kernel].weight_loop.slots_per_64_bytes <= gates.SLOT_LIMIT
    failures, sentence = gates.compare(kernels, device)
    assert failures == [], sentence


def unlike_the_checked(trouble: object) -> None:
    """The archive moves on: trouble with a release that nobody has looked at yet is news, no failure of this tree."""
    ocloc = programs.back_end("bmg-g31")["ocloc"]
    if trouble and not ocloc.as_checked:
        pytest.skip(f"ocloc {ocloc}: {trouble}")


@pytest.fixture(scope="module", params=[("b70", 9), ("b580", 8)], ids=("B70, libsycl 9", "B580, libsycl 8"))
def checked(driver, request):
    name, libsycl = request.param
    try:
        found = tool.check(driver, card.CARDS[name], libsycl)
    except tool.Refused as error:
        unlike_the_checked(error)
        raise
    assert found["libsycl"] == f"libsycl.so.{libsycl}" and card.CARDS[name].device_id in found["device"]["name"]
    return found


def test_the_card_can_run_both_rooms(checked):
    device = checked["device"]
    assert device["gpu"] and device["esimd"] and (device["local_memory"], device["max_work_group"]) == (131072, 1024)
    assert ESIMD.lacking(device) is None and TWINS.lacking(device) is None


def test_the_driver_compiles_every_module_and_takes_every_call(checked):
    for room in (ESIMD, TWINS):
        found = checked["rooms"][room.name]
        assert found["modules_ms"].keys() == {file.stem for file in room.folder.glob("*.spv")}
        assert all(ms > 0 for ms in found["modules_ms"].values())
        operators = {name.split()[0] for name in found["submitted"]}
        assert operators == {"moe_u4", "moe_u4_routed", "route_sigmoid_topk", "qk_rms_partial", "qk_rms_apply"}
        assert len(found["submitted"]) == len(set(found["submitted"])) == 52
    layer = checked["layer"]
    assert 0 < layer["own_us"] < layer["submit_us"] and layer["replay_us"] > 0


@pytest.fixture(scope="module")
def refused(driver):
    """name -> what a case of null_card_cases.py gave."""
    return answer(driver, CASES)


def test_what_is_wrong_is_refused_there(refused):
    assert refused.pop("a right module") == "fine"
    assert "takes 6 arguments, wanted 3" in refused.pop("a kernel with another number of arguments")
    said = {
        "no SPIR-V": "INVALID_BINARY", "an option that the compiler does not know": "BUILD_FAILURE",
        "a kernel that the module does not have": "INVALID_KERNEL_NAME",
        "32 GiB and more on a card of 32": "42949672960 bytes are not to be had",
    }  # fmt: skip
    assert refused.keys() == said.keys()
    for name, words in said.items():
        assert refused[name].startswith("RuntimeFailure: ") and words in refused[name], refused
