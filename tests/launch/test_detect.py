"""The device is read from /sys: cards with a driver count, integrated graphics and driverless cards do not."""

from __future__ import annotations

import pytest

from xpu_moe.launch.detect import detect, refuse_idle_cards
from xpu_moe.launch.errors import LaunchError


def card(root, slot, vendor, device, driver="xe", function="0x030000"):
    folder = root / "sys/bus/pci/devices" / slot
    folder.mkdir(parents=True)
    for name, value in (("vendor", vendor), ("device", device), ("class", function)):
        (folder / name).write_text(f"{value}\n")
    if driver:
        target = root / "sys/bus/pci/drivers" / driver
        target.mkdir(parents=True, exist_ok=True)
        (folder / "driver").symlink_to(target)


def test_four_b70(tmp_path):
    for slot in range(4):
        card(tmp_path, f"0000:0{slot}:00.0", "0x8086", "0xe223")
    found = detect(root=tmp_path)
    assert (found.kind, found.count) == ("xpu", 4) and "Battlemage" in found.why


def test_integrated_graphics_are_not_a_device(tmp_path):
    card(tmp_path, "0000:00:02.0", "0x8086", "0xa780", "i915")
    found = detect(root=tmp_path)
    assert found.kind == "cpu" and "integrated" in found.notes[0]


@pytest.mark.parametrize("driver", ["", "vfio-pci"])
def test_a_card_without_driver_is_named_and_not_used(tmp_path, driver):
    card(tmp_path, "0000:03:00.0", "0x10de", "0x2335", driver, "0x030200")
    found = detect(root=tmp_path)
    assert found.kind == "cpu" and "no driver" in found.notes[0]
    with pytest.raises(LaunchError, match="no driver .*--device cpu"):
        refuse_idle_cards(found)
    refuse_idle_cards(detect("cpu", tmp_path))


def test_one_driverless_card_beside_others_is_a_note(tmp_path):
    card(tmp_path, "0000:03:00.0", "0x8086", "0xe223", "")
    card(tmp_path, "0000:04:00.0", "0x8086", "0xe223")
    found = detect(root=tmp_path)
    refuse_idle_cards(found)
    assert (found.kind, found.count) == ("xpu", 1) and "no driver" in found.notes[0]


def test_nvidia(tmp_path):
    card(tmp_path, "0000:03:00.0", "0x10de", "0x2335", "nvidia", "0x030200")
    assert detect(root=tmp_path).kind == "cuda"


def test_intel_comes_before_nvidia_and_the_flag_before_both(tmp_path):
    card(tmp_path, "0000:03:00.0", "0x10de", "0x2335", "nvidia", "0x030200")
    card(tmp_path, "0000:04:00.0", "0x8086", "0xe20b")
    assert detect(root=tmp_path).kind == "xpu"
    assert detect("cpu", tmp_path).kind == "cpu"


def test_a_machine_that_shows_nothing(tmp_path):
    found = detect(root=tmp_path)
    assert found.kind == "cpu" and "cannot be read" in found.notes[0]
