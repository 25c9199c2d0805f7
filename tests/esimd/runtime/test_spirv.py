"""A SPIR-V module's header is judged before a driver sees it."""

from __future__ import annotations

import struct

import pytest

from xpu_moe.esimd.runtime import spirv


def _module(version: int = 0x00010400, magic: int = spirv.MAGIC, *instructions: int) -> bytes:
    words = (magic, version, 0, 100, 0, *instructions)
    return struct.pack(f"<{len(words)}I", *words)


def test_a_known_version_is_read():
    assert spirv.version(_module(0x00010100)) == (1, 1)


@pytest.mark.parametrize(("version", "text"), [(0x00010600, "SPIR-V 1.6"), (0x00020000, "SPIR-V 2.0")])
def test_a_version_that_no_driver_takes_is_an_error_that_says_what_to_do(version, text):
    with pytest.raises(spirv.SpirvError, match=f"twin module up.spv: got {text}, wanted 1.0 to 1.4.*esimd build"):
        spirv.version(_module(version), "twin module up.spv")


def test_other_bytes_are_an_error():
    with pytest.raises(spirv.SpirvError, match="got magic 0x464c457f, wanted 0x07230203"):
        spirv.version(b"\x7fELF" + bytes(60))
    with pytest.raises(spirv.SpirvError, match="got 7 bytes"):
        spirv.version(bytes(7))
    with pytest.raises(spirv.SpirvError, match="got magic 0x03022307"):
        spirv.version(struct.pack(">5I", spirv.MAGIC, 0x00010000, 0, 1, 0))


def test_entry_points_are_listed():
    name = struct.unpack("<3I", b"up_kernel\0\0\0")
    entry = ((3 + len(name)) << 16 | 15, 6, 5, *name)
    assert spirv.entry_points(_module(0x00010000, spirv.MAGIC, 2 << 16 | 17, 6, *entry)) == ("up_kernel",)


def test_a_module_that_is_cut_off_is_an_error_and_never_reaches_a_driver():
    whole = _module(0x00010000, spirv.MAGIC, 2 << 16 | 17, 6, 3 << 16 | 14, 2, 2)
    assert spirv.entry_points(whole) == ()
    with pytest.raises(
        spirv.SpirvError, match="up.spv: got 9 words, wanted more: the instruction at word 7 is cut off"
    ):
        spirv.entry_points(whole[:-4], "up.spv")
