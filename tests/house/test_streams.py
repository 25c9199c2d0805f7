"""Every tool with streams that are closed, full, left by their reader, or know few characters; and errors in JSON."""

from __future__ import annotations

import ast
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TextIO

import pytest

from xpu_moe import streams, subcommands
from xpu_moe.demo import __main__ as demo
from xpu_moe.doctor import __main__ as doctor
from xpu_moe.env import __main__ as env
from xpu_moe.env import read
from xpu_moe.launch import bootstrap
from xpu_moe.launch import main as launch
from xpu_moe.plan import __main__ as plan

ROOT = Path(__file__).parents[2]
CASES = ROOT / "tests" / "doctor" / "cases"
FACTS = str(CASES / "facts" / "healthy-4xb70-default.json")
LOG = str(CASES / "logs" / "mpi-transport-init.log")
Tool = Callable[[Sequence[str]], int]


def room(name: str) -> Tool:
    return lambda argv: subcommands.run(f"xpu_moe.{name}", argv)


def install(argv: Sequence[str]) -> int:
    return bootstrap.start(argv, ROOT)


MAINS: dict[str, Tool] = {
    "plan": plan.main, "doctor": doctor.main, "env": env.main, "demo": demo.main, "serve": launch.main,
    "install": install, "probe": room("probe"), "bench": room("bench"), "esimd": room("esimd"),
    "launch": room("launch"),
}  # fmt: skip

# answers: tool, arguments, exit code where somebody reads, does --json belong to it
ANSWERS = (
    ("plan", "--profiles", 0, True),
    ("plan", "--model {model} --tp 1 --card b70", 0, True),
    ("doctor", f"--facts {FACTS}", 0, True),
    ("env", "--device cpu", 0, True),
    ("env", "--device xpu --profile no-p2p --cards 0,1 --diff", 0, False),
    ("env", "--explain CCL_ATL_TRANSPORT --device xpu", 0, True),
    ("env", "--document", 0, False),
    ("demo", "{out} --config-only", 0, True),
    ("serve", "--profile list", 0, True),
    ("serve", "--demo --device cpu --dry-run", 0, True),
    ("serve", "--demo --device cpu --print-systemd", 0, True),
    ("serve", "--demo --device cpu --print-container", 0, True),
    ("install", "--demo --device cpu --install-plan", 0, True),
    ("launch", f"explain-log {LOG}", 2, True),
    ("esimd", "build --source qk_rms_f16", 0, False),
    ("probe", "--help", 0, False),
    ("bench", "", 2, False),
    *((tool, "--help", 0, False) for tool in ("plan", "doctor", "env", "demo", "serve")),
    *(("probe", f"{name} --help", 0, False) for name in ("moe", "p2p", "allreduce")),
    *(("bench", f"{name} --help", 0, False) for name in ("kernels", "collectives")),
)
JSON = [(tool, f"{arguments} --json", code) for tool, arguments, code, has in ANSWERS if has]
ALL = [(tool, arguments, code) for tool, arguments, code, _ in ANSWERS] + JSON

# refusals: tool, arguments, exit code, a word of the reason
REFUSALS = (
    *((tool, "--bogus", code, "--bogus") for tool, code in (("plan", 2), ("doctor", 64), ("env", 2), ("serve", 2))),
    ("install", "--bogus", 2, "--bogus"),
    ("demo", "{out} --bogus", 2, "--bogus"),
    ("demo", "", 2, "required: out"),
    *(("probe", f"{name} --bogus", 2, "--bogus") for name in ("moe", "p2p", "allreduce")),
    *(("bench", f"{name} --bogus", 2, "--bogus") for name in ("kernels", "collectives")),
    *(("esimd", f"{name} --bogus", 2, "--bogus") for name in ("build", "build-twins", "report")),
    ("esimd", "build no_such_module", 2, "no_such_module"),
    ("launch", "explain-log --bogus /dev/null", 64, "--bogus"),
    ("launch", "explain-log /nonexistent", 64, "/nonexistent"),
    ("probe", "nope", 2, "'nope'"),
    ("bench", "", 2, "no subcommand"),
    ("plan", "", 2, "--model"),
    ("plan", "--model /nonexistent", 2, "nonexistent"),
    ("plan", "--model {model} --tp 0", 2, "--tp"),
    ("doctor", "--facts /nonexistent", 64, "/nonexistent"),
    ("env", "--device cpu --profile nope", 2, "nope"),
    ("env", "--device cpu --explain NOPE", 2, "NOPE"),
    ("env", "--document", 2, "exclude each other"),
    ("demo", "/etc", 2, "/etc"),
    ("probe", "p2p --bytes 1", 2, "--bytes"),
    ("probe", "allreduce --world 0", 2, "--world"),
    ("bench", "kernels --device cpu --rounds 0", 2, "--rounds"),
    ("serve", "--demo --model x", 2, "exclude each other"),
    ("serve", "", 2, "nothing to serve"),
)
ONLY_IN_JSON = (("bench", ""), ("env", "--document"))  # the list of subcommands, the page


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """A folder with a tiny config.json."""
    folder = tmp_path_factory.mktemp("streams") / "model"
    assert demo.main([str(folder), "--config-only"]) == 0
    return folder


@pytest.fixture
def call(model, tmp_path, monkeypatch, private_cache) -> Callable[[str, str], int]:
    """Runs a tool in this process; returns its exit code, raised or returned."""
    monkeypatch.delenv("MODEL", raising=False)

    def run(tool: str, arguments: str) -> int:
        argv = arguments.format(model=model, out=tmp_path / "out").split()
        try:
            return MAINS[tool](argv)
        except SystemExit as end:
            return int(end.code or 0)

    return run


class Taken(io.TextIOWrapper):
    """A stream in memory with an encoding of its own."""

    def __init__(self, encoding: str = "utf-8") -> None:
        super().__init__(io.BytesIO(), encoding=encoding, errors="strict", write_through=True)

    def text(self) -> str:
        return self.buffer.getvalue().decode(self.encoding)  # type: ignore[attr-defined]


def unread(how: str) -> TextIO | None:
    """stdout as it is under >/dev/full, >&- and | true."""
    if how == "closed":
        return None
    if how == "full":
        return open("/dev/full", "w", encoding="utf-8")
    reading, writing = os.pipe()
    os.close(reading)
    return os.fdopen(writing, "w", encoding="utf-8")


@pytest.mark.parametrize(("how", "lost"), (("full", 74), ("closed", 74), ("left", 141)))
@pytest.mark.parametrize(("tool", "arguments", "code"), ALL)
def test_a_lost_answer_has_a_code_and_one_line(tool, arguments, code, how, lost, call, monkeypatch):
    said, stream = Taken(), unread(how)
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr(sys, "stderr", said)
    assert call(tool, arguments) == lost
    assert said.text().count("the answer is lost: ") == 1, said.text()
    if stream:
        stream.close()  # what was buffered is gone: no second error


@pytest.mark.parametrize(("tool", "arguments", "code", "word"), REFUSALS)
def test_a_refusal_is_one_object_and_the_same_words_on_stderr(tool, arguments, code, word, call, monkeypatch):
    out, err = Taken(), Taken()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    assert call(tool, f"{arguments} --json".strip()) == code
    found = json.loads(out.text())
    assert found["ok"] is False and word in found["cannot"] and found["cannot"] in err.text()
    assert set(found) == {"ok", "cannot"} | ({"exit_code", "error"} if tool in ("serve", "install") else set())


@pytest.mark.parametrize(("tool", "arguments", "code", "word"), [r for r in REFUSALS if r[:2] not in ONLY_IN_JSON])
def test_without_json_a_refusal_leaves_stdout_alone(tool, arguments, code, word, call, monkeypatch):
    out, err = Taken(), Taken()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    assert call(tool, arguments) == code
    assert out.text() == "" and word in err.text()


@pytest.mark.parametrize("where", ("closed", "full"))
@pytest.mark.parametrize(("tool", "arguments", "code"), JSON)
def test_progress_that_nobody_sees_is_not_on_stdout(tool, arguments, code, where, call, monkeypatch):
    out = Taken()
    monkeypatch.setattr(sys, "stdout", out)
    nowhere = None if where == "closed" else open("/dev/full", "w", encoding="utf-8", buffering=1)  # noqa: SIM115
    monkeypatch.setattr(sys, "stderr", nowhere)
    ended = call(tool, arguments)
    assert ended == code
    assert isinstance(json.loads(out.text()), dict)
    streams.release()
    if nowhere:
        nowhere.close()


@pytest.mark.parametrize(("tool", "arguments", "code"), ALL)
def test_an_ascii_terminal_gets_the_whole_answer(tool, arguments, code, call, monkeypatch):
    out, err = Taken("ascii"), Taken("ascii")
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    ended = call(tool, arguments)
    assert ended == code
    assert out.text().endswith("\n") and "Traceback" not in err.text()
    if arguments.endswith("--json"):
        assert isinstance(json.loads(out.text()), dict)


def test_what_cannot_be_encoded_is_escaped_without_preparation_too(monkeypatch):
    out = Taken("ascii")
    monkeypatch.setattr(sys, "stdout", out)
    assert streams.emit("tool", "0–1 …") == 0 and out.text() == "0\\u20131 \\u2026\n"
    out = Taken()
    monkeypatch.setattr(sys, "stdout", out)
    assert streams.emit("tool", "a\udcff") == 0 and out.text() == "a\\udcff\n"


def test_json_behind_two_dashes_is_not_ours():
    assert streams.asked_for_json(["--demo", "--json"]) and not streams.asked_for_json(["--demo", "--", "--json"])


def test_the_parser_takes_its_refusal(capsys):
    parser = streams.Parser(prog="tool", refusal=64)
    parser.add_argument("--json", action="store_true")
    with pytest.raises(SystemExit) as end:
        parser.parse_args(["--json", "--x"])
    printed = capsys.readouterr()
    assert end.value.code == 64 and json.loads(printed.out)["cannot"] == "unrecognized arguments: --x"
    assert printed.err.startswith("usage: tool") and "tool: error: unrecognized arguments: --x" in printed.err


def shell(line: str, *command: str, **environ: str) -> subprocess.CompletedProcess:
    """`command` with the redirections of `line`, in a process of its own."""
    return subprocess.run(
        ["sh", "-c", f'exec "$@" {line}', "sh", *command], env={**read.snapshot(), **environ}, capture_output=True,
        timeout=120, cwd=ROOT,
    )  # fmt: skip


ASCII = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
PYTHON = (sys.executable, "-m")
TAKEN_OVER = (
    "import os, sys; from xpu_moe import streams; streams.prepare(); "
    "os.execv(sys.executable, [sys.executable, '-m', 'xpu_moe.plan', '--profiles'])"
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "command", "code", "environ"),
    (
        ("2>&-", (*PYTHON, "xpu_moe.probe", "p2p", "--rehearse", "2", "--bytes", "4096", "--json"), 0, {}),
        ("2>&-", (*PYTHON, "xpu_moe.doctor", "--facts", FACTS, "--json"), 0, {}),
        ("2>&-", ("scripts/serve_minimax.sh", "--demo", "--device", "cpu", "--dry-run", "--json"), 0, {}),
        ("2>/dev/full", (*PYTHON, "xpu_moe.plan", "--json"), 2, {}),
        (">&- 2>&-", (*PYTHON, "xpu_moe.plan", "--profiles"), 74, {}),
        (">&-", (*PYTHON, "xpu_moe.env", "--document"), 74, {}),
        (">&-", (sys.executable, "-c", TAKEN_OVER), 74, {}),
        (">/dev/full", (*PYTHON, "xpu_moe.probe", "p2p", "--help"), 74, {}),
        (">/dev/full", ("scripts/serve_minimax.sh", "--demo", "--device", "cpu", "--print-systemd"), 74, {}),
        (">&-", ("scripts/serve_minimax.sh", "--demo", "--device", "cpu", "--dry-run", "--json"), 74, {}),
        (">/dev/full", ("scripts/serve_minimax.sh", "--profile", "list"), 74, {}),
        ("", (*PYTHON, "xpu_moe.env", "--document"), 0, ASCII),
        ("", (*PYTHON, "xpu_moe.plan", "--help"), 0, ASCII),
        ("", (*PYTHON, "xpu_moe.probe"), 2, ASCII),
        ("", (*PYTHON, "xpu_moe.probe", "p2p", "--rehearse", "2", "--bytes", "4096"), 0, ASCII),
    ),
)
def test_real_processes(line, command, code, environ, private_cache):
    done = shell(line, *command, **environ)
    assert done.returncode == code, done.stderr[-2000:]
    assert b"Traceback" not in done.stderr and b"Exception ignored" not in done.stderr
    if ">" in line and line[:2] != "2>":
        assert done.stdout == b""
    elif "--json" in command:
        assert isinstance(json.loads(done.stdout), dict)
    else:
        assert done.stdout.isascii() == bool(environ) and done.stdout


# files that a tool or a step starts and reads, and the module itself
OWN_STREAMS = {
    "xpu_moe/streams.py", "xpu_moe/launch/install/wheels.py", "xpu_moe/launch/supervisor.py", "xpu_moe/bench/_rank.py",
    "xpu_moe/doctor/deep.py", "xpu_moe/probe/_p2p/worker.py", "xpu_moe/probe/_allreduce/rank.py", "esimd/tools/jit.py",
    "esimd/runtime/session.py",
}  # fmt: skip


def calls(file: Path) -> set[str]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}


def test_no_tool_prints_by_itself():
    own = {"print", "argparse.ArgumentParser", "sys.stdout.write", "sys.stderr.write"}
    files = [file for folder in ("xpu_moe", "esimd", "cuda") for file in (ROOT / folder).rglob("*.py")]
    found = {str(file.relative_to(ROOT)): sorted(own & calls(file)) for file in files if own & calls(file)}
    assert set(found) == OWN_STREAMS, found


def ended_of(program: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, cwd=ROOT)


@pytest.mark.parametrize("tool", ["doctor", "plan", "env", "demo"])
def test_an_interrupted_tool_ends_with_130_and_one_line(tool):
    """Ctrl-C at the first thing that it does."""
    program = (
        "import runpy, sys; from xpu_moe import streams\n"
        "def interrupt(): raise KeyboardInterrupt\n"
        f"streams.prepare = interrupt; sys.argv = ['x']; runpy.run_module('xpu_moe.{tool}', run_name='__main__')"
    )
    ended = ended_of(program)
    assert ended.returncode == 130
    assert ended.stderr.endswith(f"{tool}: interrupted\n") and "Traceback" not in ended.stderr


# sitecustomize.py: Ctrl-C when a certain module is about to be imported
EARLY = """
import os, signal, sys
class CtrlC:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["FIRST"]:
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, CtrlC())
"""


def interrupted_at(first: str, folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    (folder / "sitecustomize.py").write_text(EARLY)
    environ = {**read.snapshot(), "PYTHONPATH": f"{folder}:{ROOT}", "FIRST": first}
    return subprocess.run(
        [sys.executable, *command], env=environ, capture_output=True, text=True, timeout=60, cwd=ROOT
    )  # fmt: skip


@pytest.mark.parametrize(
    "first, tool, arguments",
    [("argparse", "xpu_moe", ()), ("xpu_moe.streams", "xpu_moe.doctor", ("--json",)),
     ("xpu_moe.doctor.judge", "xpu_moe.doctor", ("--json",)),
     ("xpu_moe.subcommands", "xpu_moe.launch", ("explain-log", "x")),
     ("xpu_moe.launch.main", "xpu_moe.launch", ("--demo",)), ("argparse", "xpu_moe.env", ()),
     ("xpu_moe.subcommands", "xpu_moe.probe", ()), ("xpu_moe.probe.p2p", "xpu_moe.probe", ("p2p",)),
     ("ast", "xpu_moe.esimd", ()), ("xpu_moe.plan.cards", "xpu_moe.plan", ())],
)  # fmt: skip
def test_a_tool_that_is_interrupted_while_it_imports_ends_alike(first, tool, arguments, tmp_path):
    ended = interrupted_at(first, tmp_path, "-m", tool, *arguments)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", f"{tool}: interrupted\n")


def test_the_script_that_serves_does_as_well(tmp_path):
    ended = interrupted_at("xpu_moe.launch.args", tmp_path, "-B", "scripts/enter.py", "serve", "--demo")
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "serve_minimax: interrupted\n")


def test_an_interrupt_within_an_exec_of_text_is_not_remembered():
    """Python dies by the signal at its end where a plain KeyboardInterrupt went through one."""
    program = (
        "import signal; from xpu_moe import interrupt\n"
        "interrupt.expected('x')\n"
        "try: exec('signal.raise_signal(signal.SIGINT)')\n"
        "except KeyboardInterrupt: raise SystemExit(130)"
    )
    ended = ended_of(program)
    assert (ended.returncode, ended.stderr) == (130, "")


def test_other_errors_of_an_import_are_shown_as_ever():
    program = "from xpu_moe import interrupt; interrupt.expected('x'); import xpu_moe.nosuch"
    ended = ended_of(program)
    assert ended.returncode == 1 and ended.stderr.startswith("Traceback") and "xpu_moe.nosuch" in ended.stderr


def test_whoever_imports_the_package_keeps_signals_and_hooks():
    program = (
        "import signal, sys; import xpu_moe; from xpu_moe import interrupt\n"
        "assert sys.excepthook is sys.__excepthook__\n"
        "assert signal.getsignal(signal.SIGINT) is signal.default_int_handler\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN); interrupt.expected('x')\n"
        "assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN  # a job behind a shell's &"
    )
    ended = ended_of(program)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_the_package_lists_its_tools(capsys):
    from xpu_moe import __main__ as package

    assert package.main(["--help"]) == 0
    listed = capsys.readouterr().out
    there = {file.parent.name for file in (ROOT / "xpu_moe").glob("*/__main__.py")} | {"esimd"}
    assert {name for name, _ in package.TOOLS} == there and all(f"xpu_moe.{name} " in listed for name in there)
    assert package.main(["doctor", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["cannot"] == "got 'doctor'; wanted python -m xpu_moe.doctor"
