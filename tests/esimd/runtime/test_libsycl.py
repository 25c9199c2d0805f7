"""Which libsycl a process holds: none, one, two, an unknown one; and the headers for it."""

from __future__ import annotations

import pytest

from xpu_moe.esimd.runtime import libsycl

_LINE = "7f0000000000-7f0000001000 r-xp 00000000 08:01 42                         {}\n"


def _maps(*paths: str) -> list[str]:
    return [_LINE.format(path) for path in ("/usr/lib/libc.so.6", *paths)] + ["7f00-7f01 rw-p 00000000 00:00 0"]


def test_no_libsycl_is_found_among_other_libraries():
    assert libsycl.loaded(_maps("/env/lib/libsycl-jit.so.22.1", "/env/lib/libsycl_ur_trace_collector.so")) is None


@pytest.mark.parametrize(("file", "major"), [("libsycl.so.8", 8), ("libsycl.so.9.0.0", 9), ("libsycl-preview.so.9", 9)])
def test_one_libsycl_is_found_with_its_major_version(file, major):
    found = libsycl.loaded(_maps(f"/env/lib/{file}", f"/env/lib/{file}"))
    assert (str(found.path), found.major) == (f"/env/lib/{file}", major)


def test_two_libsycl_are_an_error_that_names_both():
    with pytest.raises(libsycl.LibsyclError) as raised:
        libsycl.loaded(_maps("/opt/intel/oneapi/lib/libsycl.so.8.0.0", "/env/lib/libsycl.so.9.0.0"))
    message = str(raised.value)
    assert "/opt/intel/oneapi/lib/libsycl.so.8.0.0" in message and "/env/lib/libsycl.so.9.0.0" in message
    assert "got 2 copies" in message and "wanted one" in message and "setvars.sh" in message


def test_none_loaded_says_what_to_import(monkeypatch):
    monkeypatch.setattr(libsycl, "loaded", lambda: None)
    with pytest.raises(libsycl.LibsyclError, match="none is loaded in this process, wanted the one of an XPU build"):
        libsycl.require_loaded()


def test_an_unknown_major_version_is_refused(monkeypatch):
    strange = libsycl.Loaded(libsycl.Path("/env/lib/libsycl.so.12"), 12)
    monkeypatch.setattr(libsycl, "loaded", lambda: strange)
    with pytest.raises(
        libsycl.LibsyclError, match=r"libsycl\.so\.12 \(major version 12\), wanted one of libsycl\.so\.8"
    ):
        libsycl.require_loaded()


def _headers(root, major):
    folder = root / "include" / "sycl"
    folder.mkdir(parents=True)
    (folder / "version.hpp").write_text(f"#define __LIBSYCL_MAJOR_VERSION {major}\n#define __LIBSYCL_MINOR_VERSION 0\n")


def test_headers_beside_the_library_are_taken_when_the_major_version_fits(tmp_path):
    _headers(tmp_path, 8)
    found = libsycl.headers(libsycl.Loaded(tmp_path / "lib" / "libsycl.so.8", 8))
    assert found == tmp_path / "include"


def test_headers_of_another_major_version_are_not_taken(tmp_path, monkeypatch):
    _headers(tmp_path, 8)
    asked = []
    monkeypatch.setattr(
        libsycl.toolenv, "ensure", lambda name, wanted, no_deps: asked.append((wanted, no_deps)) or tmp_path / "env"
    )
    found = libsycl.headers(libsycl.Loaded(tmp_path / "lib" / "libsycl.so.9", 9))
    assert found == tmp_path / "env" / "include"
    assert asked == [(["intel-sycl-rt==2026.1.2"], True)]
