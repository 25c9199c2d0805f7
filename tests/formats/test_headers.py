"""Headers of safetensors files: what the library refuses is named, what it takes is not."""

from __future__ import annotations

import json

import pytest

from xpu_moe.formats.headers import examine

GOOD = {
    "a": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]},
    "b": {"dtype": "BF16", "shape": [8], "data_offsets": [16, 32]},
}


def file_of(folder, header, size=32):
    text = json.dumps(header).encode()
    file = folder / "model.safetensors"
    file.write_bytes(len(text).to_bytes(8, "little") + text + bytes(size))
    return file


def changed(name, **more):
    return {**GOOD, name: {**GOOD[name], **more}}


def opened(file):
    """Whether safetensors itself takes the file."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="np") as found:
            return bool(found.keys()) or True
    except (SafetensorError, ValueError):
        return False


@pytest.mark.parametrize(("header", "says"), [
    (changed("a", dtype="Q9"), "tensor 'a': dtype 'Q9'"),
    (changed("a", dtype=["F32"]), "tensor 'a': dtype"),
    (changed("a", data_offsets=[-5, 10]), "tensor 'a': data_offsets [-5, 10]"),
    (changed("a", data_offsets=[16, 0]), "tensor 'a': data_offsets [16, 0]"),
    (changed("a", data_offsets=None), "tensor 'a': data_offsets None"),
    (changed("a", shape="x"), "tensor 'a': shape x"),
    (changed("a", shape=[2, 3]), "tensor 'a': 16 bytes by its data_offsets, F32 of [2, 3]"),
    (changed("b", data_offsets=[0, 16]), "tensor 'b': begins at byte 0, within tensor 'a' that ends at 16"),
    (changed("b", data_offsets=[8, 24]), "tensor 'b': begins at byte 8, within tensor 'a'"),
    (changed("b", data_offsets=[17, 33]), "tensor 'b': begins at byte 17, the bytes from 16 on belong to no tensor"),
    ({**GOOD, "b": [1]}, "tensor 'b': got list"),
    ({"a": GOOD["a"]}, "16 bytes longer"),
    ({**GOOD, "c": {"dtype": "U8", "shape": [4], "data_offsets": [32, 36]}}, "tensor 'c': ends 4 bytes after the file"),
    ({**GOOD, "__metadata__": {"a": 1}}, "__metadata__"),
])  # fmt: skip
def test_what_the_library_refuses_is_named(tmp_path, header, says):
    file = file_of(tmp_path, header)
    found = examine(file)
    assert found is not None and any(says in wrong for wrong in found.wrong), found
    assert not opened(file)


@pytest.mark.parametrize(("header", "size"), [
    (GOOD, 32),
    (dict(reversed(GOOD.items())), 32),
    ({**GOOD, "__metadata__": {"format": "pt"}}, 32),
    ({**GOOD, "none": {"dtype": "F32", "shape": [0, 4], "data_offsets": [16, 16]}}, 32),
    ({"one": {"dtype": "I64", "shape": [], "data_offsets": [0, 8]}}, 8),
    ({"f8": {"dtype": "F8_E4M3", "shape": [3, 3], "data_offsets": [0, 9]}}, 9),
    ({"f4": {"dtype": "F4", "shape": [2, 4], "data_offsets": [0, 4]}}, 4),
])  # fmt: skip
def test_what_the_library_takes_is_silent(tmp_path, header, size):
    file = file_of(tmp_path, header, size)
    found = examine(file)
    assert found is not None and found.wrong == () and found.names == header.keys() - {"__metadata__"}
    assert opened(file)


@pytest.mark.parametrize(
    "content", [b"", b"\x05", b"\xff" * 40, b"\x02" + bytes(7) + b"[]", b"\x02" + bytes(7) + b"{x"]
)
def test_a_header_that_is_none_has_nothing_to_be_asked(tmp_path, content):
    file = tmp_path / "model.safetensors"
    file.write_bytes(content)
    assert examine(file) is None and examine(tmp_path / "absent") is None
