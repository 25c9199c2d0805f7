"""The rows: complete, sourced, consistent with themselves."""

from __future__ import annotations

import pytest

from tests.env.names import NAMES
from xpu_moe.env import library, parse
from xpu_moe.env.profiles import CONDITIONS, PROFILES
from xpu_moe.env.registry import find, lookup, registry
from xpu_moe.env.versions import COMPONENTS, satisfies


def test_every_known_name_has_a_row_with_a_source():
    missing = [name for name in NAMES if find(name) is None]
    assert missing == []
    assert [name for name in NAMES if not lookup(name).source] == []
    assert len(NAMES) == len(set(NAMES)) and len(NAMES) > 180


def test_rows_name_only_what_exists():
    for row in registry().values():
        for key, value in row.profiles.items():
            device, _, profile = key.rpartition(":")
            assert profile in PROFILES and device in ("", "xpu", "cuda", "cpu"), row.name
            assert not row.choices or value in row.choices, row.name
        assert set(row.when) <= set(row.profiles) and set(row.when.values()) <= set(CONDITIONS), row.name
        assert set(row.honoured) <= set(COMPONENTS), row.name
        assert all(satisfies("1.0", wanted) in (True, False) for wanted in row.honoured.values()), row.name
        assert parse.reader_of(row) in parse._READERS, row.name
        for other in (*(c.other for c in row.conflicts), *(n.other for n in row.needs)):
            assert find(other.split("=")[0]) is not None, (row.name, other)


def test_a_profile_never_exports_what_its_library_would_misread():
    for row in registry().values():
        for key, value in row.profiles.items():
            if "{" not in value:
                reading = parse.interpret(row.name, value)
                assert not reading.fatal and not reading.says, (row.name, key, reading)


def test_a_default_is_not_cautioned_against():
    from xpu_moe.env.pattern import matches

    for row in registry().values():
        if row.default is not None:
            bad = [c.value for c in row.cautions if matches(c.value, row.default, row.default)]
            assert not bad, row.name


def test_a_family_is_found_by_a_member():
    assert lookup("I_MPI_PIN_DOMAIN").name == "I_MPI_*"
    assert lookup("IGC_EnableDPEmulation").name == "IGC_EnableDPEmulation"
    with pytest.raises(KeyError, match="NO_SUCH_NAME is not in the registry"):
        lookup("NO_SUCH_NAME")


@pytest.mark.parametrize(
    "version,specifier,answer",
    [
        ("0.10.2", "<=0.10", True),
        ("0.11.0", "<=0.10", False),
        ("0.30.0", ">=0.17,<0.31", True),
        ("0.31.0rc1", ">=0.17,<0.31", False),
        ("2021.14.1", ">2021.14", False),
        ("2021.15.9.14", ">2021.14", True),
        ("2022.1.2", ">=2022.0,<=2022.1", True),
        ("2.11.0+xpu", ">=2.8", True),
        ("v26.18", "==26.18", True),
    ],
)
def test_specifiers_speak_of_series(version, specifier, answer):
    assert satisfies(version, specifier) is answer


def test_a_specifier_that_says_nothing_is_an_error():
    with pytest.raises(ValueError, match="specifier 'newer'"):
        satisfies("1.0", "newer")


def test_a_library_is_searched_for_a_whole_name(tmp_path):
    fake = tmp_path / "libccl.so.1"
    fake.write_bytes(b"\0CCL_SYCL_ALLREDUCE_SIMPLE_THRESHOLD\0 CCL_A\0CCL_SYCL_ALLREDUCE_LL_THRESHOLD\0CCL_B: \0")
    assert library.knows(fake, "CCL_SYCL_ALLREDUCE_SIMPLE_THRESHOLD")
    assert library.knows(fake, "CCL_SYCL_ALLREDUCE_LL_THRESHOLD")
    assert not any(library.knows(fake, name) for name in ("CCL_SYCL_ALLREDUCE_LL", "CCL_A", "CCL_B"))


def test_the_libraries_of_a_process_are_seen():
    assert any("libc" in path.name for path in library.loaded("libc"))
    assert library.loaded("no such library") == []
