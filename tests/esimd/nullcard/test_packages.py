"""Fetching the driver, and which back end serves a device: with stand-ins for apt and ocloc."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from xpu_moe.esimd import driver as tool
from xpu_moe.esimd.nullcard import card, packages
from xpu_moe.esimd.tools import gates, isa, programs

VERSIONS = {"intel-ocloc": "99.1-1", "libigc7": "7.0-1", "libigc7-tools": "7.0-1", "libze1": "1.0"}


SYSTEM = programs.PROGRAMS["ocloc"].checked


def placed(root: Path, name: str = "99.1-1", versions: dict[str, str] | None = None) -> Path:
    """A folder as `fetch` leaves it."""
    folder = root / "intel-driver" / name
    (folder / "bin").mkdir(parents=True)
    (folder / "packages.json").write_text(json.dumps(versions or VERSIONS))
    return folder


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_what_is_there_is_found_without_asking_anybody(private_cache, monkeypatch):
    assert packages.found() is None
    old, new = placed(private_cache, "98"), placed(private_cache)
    os.utime(old / "packages.json", (1, 1))
    monkeypatch.setattr(packages, "_run", lambda command: pytest.fail(f"ran {command}"))
    driver = packages.fetch()
    assert (driver.root, driver.version, driver.compiler) == (new, "99.1-1", "libigc7 7.0-1")


def test_a_program_is_started_with_the_driver_s_own_c_library(private_cache):
    driver = packages.Driver(Path("/d"), VERSIONS)
    libraries = "/d/usr/lib/x86_64-linux-gnu"
    assert driver.started(Path("/p"), "-x", also=[Path("/l")]) == [
        f"{libraries}/ld-linux-x86-64.so.2", "--library-path", f"{libraries}:/l", "/p", "-x",
    ]  # fmt: skip


@pytest.fixture
def apt(tmp_path, monkeypatch):
    """A machine whose apt knows an archive with these packages, and whose dpkg-deb takes them apart."""
    tools = tmp_path / "tools"
    script(tools / "apt-get", f"""
case "$*" in
  *indextargets*) echo 'Debian http://archive.example/debian-security/'; echo 'Debian http://archive.example/debian/';;
  *update*) cat $(echo "$@" | sed 's/.*Dir::Etc::SourceList=\\([^ ]*\\).*/\\1/') > {tmp_path}/sources;;
  *install*) echo "$@" > {tmp_path}/install
    d=$(echo "$@" | sed 's/.*Dir::Cache::archives=\\([^ ]*\\).*/\\1/')
    for p in intel-ocloc libigc7 libigc7-tools; do echo $p > $d/$p.deb; done;;
esac""")  # fmt: skip
    script(tools / "apt-cache", "echo '  Depends: libigc7'; echo '  Depends: <libigdfcl7>'")
    script(tools / "dpkg-deb", """
if [ "$1" = -x ]; then mkdir -p $3/usr/bin; echo 'echo ran' > $3/usr/bin/ocloc-99; echo x > $3/usr/bin/iga64
else echo "$(basename $3 .deb) 99.1-1"; fi""")  # fmt: skip
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    return tmp_path


def test_packages_come_from_the_unstable_archive_at_this_machine_s_address(apt, private_cache, capsys):
    driver = packages.fetch()
    assert driver.versions == dict.fromkeys(("intel-ocloc", "libigc7", "libigc7-tools"), "99.1-1")
    assert (apt / "sources").read_text().split()[-3:] == ["http://archive.example/debian/", "sid", "main"]
    asked = (apt / "install").read_text()
    assert "--download-only" in asked and "Dir::State::status=/dev/null" not in asked
    assert asked.split()[-5:] == ["intel-ocloc", "libze1", "libze-intel-gpu1", "libigc7", "libigc7-tools"]
    assert driver.root == private_cache / "intel-driver" / "99.1-1"
    text = driver.program("ocloc").read_text()
    assert f"'{driver.root}/usr/bin/ocloc-99'" in text and os.access(driver.program("iga64"), os.X_OK)
    assert [p.name for p in (private_cache / "intel-driver").iterdir() if p.name != ".lock"] == ["99.1-1"]
    assert "34 MB" in capsys.readouterr().err


@pytest.mark.parametrize(
    "tool_text,said",
    (
        ("apt-get|exit 0", "apt has no Debian archive on this machine.*intel-ocloc"),
        ("apt-get|echo 'Debian http://a/debian'; case \"$*\" in *update*) echo 'no route' >&2; exit 100;; esac",
         "`apt-get update -q` failed:\nno route"),
        ("apt-cache|echo nothing", "names no compiler library"),
        ("dpkg-deb|exit 2", "`dpkg-deb"),
    ),
)  # fmt: skip
def test_what_fails_is_said_and_leaves_nothing(apt, private_cache, tool_text, said):
    name, _, text = tool_text.partition("|")
    script(apt / "tools" / name, text)
    with pytest.raises(packages.Unavailable, match=f"(?s){said}"):
        packages.fetch()
    assert packages.found() is None
    assert [path.name for path in (private_cache / "intel-driver").iterdir()] == [".lock"]


def test_without_apt_it_says_where_the_compiler_comes_from_elsewhere(private_cache, monkeypatch, capsys):
    monkeypatch.setattr(packages.shutil, "which", lambda name: None)
    assert tool.main(["--json"]) == 2
    said = json.loads(capsys.readouterr().out)
    assert said["ok"] is False and "apt-get: not found" in said["cannot"] and "intel-ocloc" in said["cannot"]


# ---- which ocloc serves a device
@pytest.fixture
def oclocs(private_cache, monkeypatch, tmp_path):
    """A system's ocloc that knows nothing but PVC, and a fetched one that knows bmg-g31."""
    old = script(tmp_path / "old", 'echo "no such device: $2"; exit 3')
    folder = placed(private_cache)
    script(folder / "bin" / "ocloc", '[ "$2" = bmg-g31 ] && echo "Matched ids:" && echo 20.2.0')
    monkeypatch.setattr(programs, "find", lambda name: programs.Found(str(old), SYSTEM, SYSTEM))
    programs.answer.cache_clear()
    yield folder
    programs.answer.cache_clear()


def test_a_device_is_compiled_by_the_system_s_ocloc_or_by_the_fetched_one_that_knows_it(oclocs):
    assert programs.back_end("pvc")["ocloc"].version == SYSTEM
    fetched = programs.back_end("bmg-g31")
    assert fetched["ocloc"].path == str(oclocs / "bin" / "ocloc") and fetched["ocloc"].version == "99.1-1"
    assert fetched["iga"].version == "7.0-1" and not fetched["ocloc"].as_checked
    assert str(fetched["ocloc"]) == f"99.1-1 (checked with {programs.FETCHED['ocloc']})"
    assert programs.back_end("bmg-g21")["ocloc"].version == SYSTEM  # nobody knows it: the system's answer counts
    known = {name: not why for name, why in gates.devices().items()}
    assert known == {"pvc": True, "bmg": False, "bmg-g21": False, "bmg-g31": True}
    assert gates.devices()["bmg"] == "no such device: bmg"


def test_a_record_is_the_committed_one_only_for_the_release_that_made_it(oclocs):
    assert gates.baseline_file("pvc").name == "baseline.json"
    assert gates.baseline_file("bmg-g31").name == "bmg-g31-99.1_1.json"
    (oclocs / "packages.json").write_text(json.dumps({**VERSIONS, "intel-ocloc": programs.FETCHED["ocloc"] + ".5-1"}))
    assert gates.baseline_file("bmg-g31") == gates.BASELINES["bmg-g31", programs.FETCHED["ocloc"]]


def test_an_old_ocloc_s_refusal_says_how_to_get_the_current_one(oclocs, monkeypatch):
    monkeypatch.setattr(isa.rewrite, "for_old_igc", lambda spirv: (spirv, False))
    with pytest.raises(isa.IsaError, match="bmg-g21(?s:.*)python -m xpu_moe.esimd driver"):
        isa.report(b"", "bmg-g21")
    with pytest.raises(isa.IsaError) as refused:
        isa.report(b"", "xyz")
    assert "esimd driver" not in str(refused.value)


# ---- the card
def test_the_driver_is_told_a_b70():
    keys = card.CARDS["b70"].keys()
    assert keys["OverrideHwIpVersion"] == str(0x05008000)  # 20.2.0: `ocloc ids bmg-g31`
    assert keys["HardwareInfoOverride"] == "8x4x8" and keys["ForceDeviceId"] == "0xe223"


def test_a_child_that_dies_is_told_with_its_last_lines(monkeypatch, tmp_path, capsys):
    dying = ["sh", "-c", "echo 'driver: step' >&2; echo 'Abort was called' >&2; exit 134"]
    monkeypatch.setattr(card, "python", lambda driver, arguments, also: dying)
    monkeypatch.setattr(card, "environment", lambda driver, which, inherited: dict(inherited))
    monkeypatch.setattr(tool.standalone, "environment", lambda major: tmp_path)
    monkeypatch.setattr(packages, "fetch", lambda again: packages.Driver(tmp_path, VERSIONS))
    assert tool.main(["--json"]) == 1
    printed = capsys.readouterr()
    assert "exit 134" in printed.out and "Abort was called" in json.loads(printed.out)["cannot"]
    assert "driver: step" in printed.err
