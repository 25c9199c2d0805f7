"""A cache folder that cannot be used: said before any work, as one line, as an object with --json; exit 2."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from xpu_moe import subcommands
from xpu_moe.env import read
from xpu_moe.esimd import build_twins, driver, report
from xpu_moe.esimd.tools import gates, programs

TOOLS = {
    "report": (report.main, ()),
    "build-twins": (build_twins.main, ()),
    "driver": (driver.main, ()),
}


@pytest.fixture
def no_work(monkeypatch):
    """An ocloc that knows every device, and nothing that may compile for it."""
    found = programs.Found("/usr/bin/ocloc", "99.1", "22.43")
    monkeypatch.setattr(programs, "back_end", lambda device: {"ocloc": found, "iga": found})
    monkeypatch.setattr(programs, "answer", lambda ocloc, device: "")
    monkeypatch.setattr(gates, "compile_all", lambda *given: pytest.fail("a kernel was compiled"))
    programs.compiler_root.cache_clear()


@pytest.mark.parametrize("place", ["/dev/null", "/proc/x"])
@pytest.mark.parametrize("tool", TOOLS)
def test_it_is_refused_before_any_work(tool, place, no_work, monkeypatch, capsys):
    monkeypatch.setenv("XPU_MOE_CACHE", place)
    main, arguments = TOOLS[tool]
    assert main([*arguments, "--json"]) == 2
    said = capsys.readouterr()
    answer = json.loads(said.out)
    assert answer["ok"] is False and answer["cannot"].startswith(f"cache folder {place}: ")
    assert said.err == f"{tool}: {answer['cannot']}\n"


def test_a_report_without_a_record_of_its_own_needs_none_for_the_rival(no_work, monkeypatch, capsys):
    """With the release of ocloc whose record is committed, and no rival, nothing of the cache is touched."""
    monkeypatch.setenv("XPU_MOE_CACHE", "/dev/null")
    monkeypatch.setattr(report, "collect", lambda *given: {"failures": []})
    known = programs.Found("/usr/bin/ocloc", programs.PROGRAMS["ocloc"].checked, programs.PROGRAMS["ocloc"].checked)
    monkeypatch.setattr(programs, "back_end", lambda device: {"ocloc": known, "iga": known})
    assert report.main(["--device", "pvc", "--no-rival", "--json"]) == 0
    assert report.main(["--device", "pvc", "--json"]) == 2
    assert "cache folder /dev/null" in capsys.readouterr().err


def test_a_tool_that_does_not_look_by_itself_is_caught_at_the_entry(monkeypatch, capsys):
    from xpu_moe.cache import folder
    from xpu_moe.esimd import build

    monkeypatch.setenv("XPU_MOE_CACHE", "/dev/null")
    monkeypatch.setattr(build, "main", lambda argv: folder("envs"))
    assert subcommands.run("xpu_moe.esimd", ["build", "--all", "--json"]) == 2
    said = capsys.readouterr()
    assert json.loads(said.out)["cannot"] in said.err and said.err.startswith("xpu_moe.esimd build: cache folder")


def test_a_fault_of_ours_is_no_refusal(monkeypatch):
    from xpu_moe.esimd import build

    def main(argv):
        raise RuntimeError("ours")

    monkeypatch.setattr(build, "main", main)
    with pytest.raises(RuntimeError, match="ours"):
        subcommands.run("xpu_moe.esimd", ["build"])


@pytest.mark.parametrize("tool", TOOLS)
def test_the_help_tells_the_exit_codes(tool, capsys):
    with pytest.raises(SystemExit):
        TOOLS[tool][0](["--help"])
    assert "cache folder that cannot be used" in " ".join(capsys.readouterr().out.split())


@pytest.mark.slow
def test_from_the_shell_as_well():
    command = [sys.executable, "-m", "xpu_moe.esimd", "build-twins", "--json"]
    environ = {**read.snapshot(), "XPU_MOE_CACHE": "/proc/x"}
    ended = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2 and ended.stderr.count("\n") == 1
    assert json.loads(ended.stdout)["cannot"].startswith("cache folder /proc/x: ")
