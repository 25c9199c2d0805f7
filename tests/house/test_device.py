"""Devices are described, and a missing runtime is a sentence, not an exception."""

from __future__ import annotations

import subprocess
import sys
import types
from pathlib import Path

import pytest

from xpu_moe import device

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def fresh():
    device.inventory.cache_clear()
    device.architecture.cache_clear()
    yield
    device.inventory.cache_clear()
    device.architecture.cache_clear()


def fake_torch(**runtimes):
    return types.SimpleNamespace(
        version=types.SimpleNamespace(xpu=runtimes.get("xpu_version"), cuda=runtimes.get("cuda_version")),
        xpu=runtimes.get("xpu"), cuda=runtimes.get("cuda"),
    )  # fmt: skip


def properties(name, memory, **more):
    return types.SimpleNamespace(name=name, total_memory=memory, **more)


def test_a_machine_without_torch_still_has_its_cpu(monkeypatch):
    monkeypatch.setattr(device, "_torch", lambda: (None, "torch is not installed"))
    found = device.inventory()
    assert [d.kind for d in found.devices] == ["cpu"] and found.devices[0].memory > 0
    assert any("torch is not installed" in reason for reason in found.unseen)
    assert device.current().kind == "cpu"


@pytest.mark.parametrize("source", ["raise RuntimeError('half of it is here')", "def", None])
def test_half_an_installation_of_torch_is_told(source, tmp_path):
    (tmp_path / "torch").mkdir()
    if source is not None:
        (tmp_path / "torch" / "__init__.py").write_text(source)
    code = "from xpu_moe.device import inventory as i; print([d.kind for d in i().devices], i().unseen)"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], cwd=ROOT, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True
    )
    assert done.stdout.startswith("['cpu'] ") and done.stdout.count("torch does not import: ") == 2, done.stderr


def test_four_b70_with_peers(monkeypatch):
    xpu = types.SimpleNamespace(
        device_count=lambda: 4,
        get_device_properties=lambda i: properties("Intel(R) Arc(TM) Pro B70 Graphics", 32 << 30),
        can_device_access_peer=lambda a, b: {a, b} != {0, 3},
    )  # fmt: skip
    monkeypatch.setattr(device, "_torch", lambda: (fake_torch(xpu=xpu, xpu_version="20250302"), ""))
    cards = device.devices("xpu")
    assert [c.architecture for c in cards] == ["bmg-g31"] * 4
    assert cards[0].bandwidth == 608e9 and "datasheet" in cards[0].bandwidth_source
    assert cards[0].peers == (1, 2) and cards[1].peers == (0, 2, 3)
    assert device.architecture("xpu") == "bmg-g31" and device.current().kind == "xpu"


def test_a_runtime_that_fails_is_told(monkeypatch):
    def broken():
        raise RuntimeError("zeInit failed")

    xpu = types.SimpleNamespace(device_count=broken)
    monkeypatch.setattr(device, "_torch", lambda: (fake_torch(xpu=xpu, xpu_version="2025"), ""))
    assert any("zeInit failed" in reason for reason in device.inventory().unseen)


def test_dpctl_serves_where_torch_has_no_xpu(monkeypatch):
    card = types.SimpleNamespace(name="Intel(R) Graphics [0xe223]", global_mem_size=32 << 30)
    stub = types.ModuleType("dpctl")
    stub.__spec__ = types.SimpleNamespace(name="dpctl")
    stub.get_devices = lambda **kw: [card]
    monkeypatch.setitem(sys.modules, "dpctl", stub)
    monkeypatch.setattr(device, "_torch", lambda: (None, "torch is not installed"))
    (found,) = device.devices("xpu")
    assert found.architecture == "bmg-g31", "a driver that knows only the PCI id"


def test_nvidia_architecture_comes_from_the_runtime(monkeypatch):
    cuda = types.SimpleNamespace(
        is_available=lambda: True, device_count=lambda: 2, can_device_access_peer=lambda a, b: True,
        get_device_properties=lambda i: properties("NVIDIA H200", 141 << 30, major=9, minor=0),
    )  # fmt: skip
    monkeypatch.setattr(device, "_torch", lambda: (fake_torch(cuda=cuda, cuda_version="13.0"), ""))
    assert [(d.architecture, d.bandwidth, d.peers) for d in device.devices("cuda")] == [
        ("sm_90", 4.8e12, (1,)),
        ("sm_90", 4.8e12, (0,)),
    ]


def test_an_unknown_card_has_no_invented_bandwidth():
    assert device.card("Some Future GPU") == ("", 0.0, "")


def test_an_unknown_kind_is_an_error():
    with pytest.raises(ValueError, match="kind: got 'gpu'"):
        device.devices("gpu")
