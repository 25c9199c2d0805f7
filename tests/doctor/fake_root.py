"""A machine in a folder: /proc, /sys, /dev as far as the doctor looks."""

from __future__ import annotations

from pathlib import Path

GIB = 1 << 30


def write(root: Path, path: str, content: str) -> Path:
    file = root / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content)
    return file


def machine(root: Path, cards: int = 2) -> Path:
    """A host with `cards` B70 behind their own switches, one of them on a riser, a display on the first."""
    write(root, "/proc/sys/kernel/osrelease", "6.17.0-23-generic\n")
    write(root, "/proc/sys/kernel/yama/ptrace_scope", "1\n")
    write(root, "/proc/self/status", "Name:\tpython3\nCapEff:\t0000000000080000\nSeccomp:\t2\n")
    write(root, "/proc/meminfo", "MemTotal:       131072000 kB\nMemFree: 1 kB\nSwapTotal:       8388608 kB\n")
    write(root, "/proc/1/cgroup", "0::/docker/abc\n")
    write(root, "/etc/os-release", 'NAME="Ubuntu"\nPRETTY_NAME="Ubuntu 24.04.3 LTS"\n')
    (root / "dev/dri/by-path").mkdir(parents=True)
    (root / "dev/dri/by-path/pci-0000:03:00.0-render").write_text("")
    (root / "dev/shm").mkdir()
    write(root, "/sys/kernel/iommu_groups/0/type", "DMA-FQ\n")
    (root / "sys/bus/pci/devices").mkdir(parents=True)
    for index in range(cards):
        card(root, index)
    integrated = root / "sys/devices/pci0000:00/0000:00:02.0"
    for name, content in (("vendor", "0x8086"), ("class", "0x030000"), ("device", "0x7d67")):
        write(root, f"/sys/devices/pci0000:00/0000:00:02.0/{name}", content)
    (root / "sys/bus/pci/devices/0000:00:02.0").symlink_to(integrated)
    return root


def card(root: Path, index: int, device: str = "0xe223") -> None:
    """Endpoint <- the card's own switch (down, up) <- root port, as /sys/devices nests them."""
    bus = f"{3 + 3 * index:02x}"
    port, up, down, end = "0000:00:01.0", f"0000:{bus}:00.0", f"0000:{bus}:01.0", f"0000:{bus}:02.0"
    chain = f"/sys/devices/pci0000:00/{port}/{up}/{down}/{end}"
    for path, vendor in ((chain.rsplit("/", 2)[0], "0x8086"), (chain, "0x8086")):
        write(root, f"{path}/vendor", vendor)
    up_path = chain.rsplit("/", 2)[0]
    write(root, f"{up_path}/class", "0x060400")
    write(root, f"{up_path}/current_link_speed", "32.0 GT/s PCIe" if index == 0 else "8.0 GT/s PCIe")
    write(root, f"{up_path}/current_link_width", "16" if index == 0 else "1")
    write(root, f"{chain}/class", "0x030000")
    write(root, f"{chain}/device", device)
    write(root, f"{chain}/current_link_speed", "2.5 GT/s PCIe")
    write(root, f"{chain}/current_link_width", "1")
    small, large = "0x0000000080000000 0x0000000080ffffff 0x0000000000140204", "0x4000000000 0x47ffffffff 0x14220c"
    write(root, f"{chain}/resource", f"{small}\n0x0 0x0 0x0\n{large}\n")
    write(root, f"{chain}/tile0/physical_vram_size_bytes", f"0x{32 * GIB:x}")
    state = "connected" if index == 0 else "disconnected"
    write(root, f"{chain}/drm/card{index}/card{index}-DP-1/status", state)
    write(
        root,
        f"/sys/kernel/debug/dri/{index}/gt0/uc/guc_info",
        "GuC firmware: xe/bmg_guc_70.bin\n version: found 70.49.4\n",
    )
    (root / "sys/bus/pci/drivers/xe").mkdir(parents=True, exist_ok=True)
    (root / chain.lstrip("/") / "driver").symlink_to(root / "sys/bus/pci/drivers/xe")
    (root / "sys/bus/pci/devices" / end).symlink_to(root / chain.lstrip("/"))
