"""Logs of failed starts that no rule knows: the first exception of the first process that failed is named."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.doctor.log_lines import HARMLESS, LINES
from xpu_moe.doctor import logfile
from xpu_moe.doctor.logfile import explain_file
from xpu_moe.doctor.logs import EXCEPTION, explain
from xpu_moe.doctor.traces import Tracebacks
from xpu_moe.launch.explain_log import main
from xpu_moe.launch.watch import Watch

START = """\
(APIServer pid=41) INFO 11-30 15:19:02 [utils.py:240] vLLM API server version 0.32.0
(APIServer pid=41) INFO 11-30 15:19:20 [model.py:621] Resolved architecture: MiniMaxM2ForCausalLM
(EngineCore pid=71) INFO 11-30 15:19:31 [core.py:116] Initializing a V1 LLM engine (v0.32.0) with config: model='m'
(EngineCore pid=71) INFO 11-30 15:19:44 [cpu_model_runner.py:88] Starting to load model m...
"""
ENGINE, WORKER = "(EngineCore pid=71) ERROR 11-30 15:19:45 [core.py:1181] ", "(Worker_TP0 pid=90) ERROR 11-30 15:19:45 "
WORKER += "[multiproc_executor.py:912] "
API = "(APIServer pid=41) "
UP = "(APIServer pid=41) INFO:     Application startup complete.\n"
STOP = "(APIServer pid=41) INFO 11-30 15:57:38 [launcher.py:254] [shutdown] API server: shutdown triggered"
HEAD = "Traceback (most recent call last):"
CAUSED = "The above exception was the direct cause of the following exception:"
DURING = "During handling of the above exception, another exception occurred:"
INIT = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
GONE = "Exception: WorkerProc initialization failed due to an exception in a background process. See stack "
GONE += "trace for root cause."


def trace(prefix, raised, source="raise RuntimeError("):
    frames = [HEAD, '  File "/venv/vllm/v1/engine/core.py", line 1155, in run_engine_core', f"    {source}",
              "    ^^^^^^^^^^^^^^^^^^"]  # fmt: skip
    return [prefix + line for line in (*frames, *raised.split("\n"))]


def chain(prefix, *raised, link=DURING):
    lines = trace(prefix, raised[0])
    for one in raised[1:]:
        lines += [prefix.rstrip(), prefix + link, prefix.rstrip(), *trace(prefix, one)]
    return lines


def log(*parts):
    return START + "".join(line + "\n" for part in parts for line in part)


API_END = [*chain(API, INIT), API + "[rank0]:[W1130 15:19:46 ProcessGroupGloo.cpp:1] Warning: destroyed"]
UNKNOWN = {
    "engine, then API server": (
        log([ENGINE + "EngineCore failed to start."], trace(ENGINE, "OddError: the engine broke"), API_END),
        "EngineCore", "OddError: the engine broke"),
    "printed again by the process that ends": (
        log(trace(ENGINE, "OddError: the engine broke"), ["(EngineCore pid=71) Process EngineCore:"],
            trace("(EngineCore pid=71) ", "OddError: the engine broke"), API_END),
        "EngineCore", "OddError: the engine broke"),
    "chain: the first is the root": (
        log(chain(ENGINE, "lib.FirstError: one", "SecondError: two", "ThirdError: three"), API_END),
        "EngineCore", "lib.FirstError: one"),
    "direct cause, and a format helper that raises": (
        log(chain(ENGINE, "InnerError: deep", "OuterError: high", link=CAUSED),
            trace(API, INIT, "raise self._format_exception(outputs) from None")),
        "EngineCore", "InnerError: deep"),
    "worker before engine": (
        log(trace(WORKER, "OddError: the worker broke"), trace(ENGINE, GONE), API_END),
        "Worker_TP0", "OddError: the worker broke"),
    "engine's lines come first": (
        log(trace(ENGINE, "RuntimeError: executor is gone"), trace(WORKER, "OddError: the worker broke"), API_END),
        "Worker_TP0", "OddError: the worker broke"),
    "worker that only lost its engine": (
        log(trace(ENGINE, "OddError: the engine broke"), trace(WORKER, "EOFError"), API_END),
        "EngineCore", "OddError: the engine broke"),
    "two processes mixed, line by line": (
        log([line for pair in zip(trace(ENGINE, GONE), trace(WORKER, "OddError: the worker broke"), strict=True)
             for line in pair], API_END),
        "Worker_TP0", "OddError: the worker broke"),
    "an engine whose log has no head line": (
        log(trace(ENGINE, "OddError: the engine broke")[1:], API_END), "EngineCore", "OddError: the engine broke"),
    "ranks of torch": (
        log(trace("[rank1]: ", "OddError: the rank broke")), None, "OddError: the rank broke"),
    "a group of exceptions": (
        log(["  + Exception Group Traceback (most recent call last):", '  |   File "x.py", line 1, in <module>',
             "  | ExceptionGroup: 2 of them (2 sub-exceptions)", "  +-+---------------- 1 ----------------"],
            trace("    | ", "OddError: inside")), None, "OddError: inside"),
    "a message of several lines": (
        log(trace(API, "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig\n"
                       "  Value error, the model is odd [type=value_error]")),
        "APIServer", "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig Value error, "
                     "the model is odd"),
    "no message": (log(trace(ENGINE, "AssertionError"), API_END), "EngineCore", "AssertionError"),
    "a type without Error in its name": (log(trace(ENGINE, "odd.Surprise: here"), API_END), "EngineCore",
                                         "odd.Surprise: here"),
    "colours": (
        log(["\x1b[0;36m(EngineCore pid=71)\x1b[0;0m " + line for line in
             trace("ERROR 11-30 15:19:45 [core.py:1181] ", "OddError: the engine broke")], API_END),
        "EngineCore", "OddError: the engine broke"),
    "journald": (
        "".join(f"Nov 30 15:19:4{n % 10} host python3[7{n % 3}]: {line}\n" for n, line in
                enumerate(log(trace(ENGINE, "OddError: the engine broke"), API_END).splitlines())),
        "EngineCore", "OddError: the engine broke"),
    "docker compose": (
        "".join(f"vllm-1  | {line}\n" for line in
                log(trace(ENGINE, "OddError: the engine broke"), API_END).splitlines()),
        "EngineCore", "OddError: the engine broke"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "process", "raised"), UNKNOWN.values(), ids=UNKNOWN)
def test_the_first_exception_of_the_first_failed_process_is_named(text, process, raised):
    result = explain(text.splitlines())
    assert result.raised is not None and (result.raised.process, result.raised.text()) == (process, raised)
    first = result.findings[0]
    assert (first.code, first.severity, first.title) == (EXCEPTION, "error", raised)
    assert result.unexplained and raised.split("\n")[0].split(" Value")[0] in text.splitlines()[first.line - 1]


def test_the_end_of_a_chain_is_told_too():
    text = log(chain(ENGINE, "KeyError: 'odd'", "OddError: no such thing: odd"), API_END)
    assert "ended as OddError: no such thing: odd" in explain(text.splitlines()).findings[0].why


def test_that_only_points_up_is_never_the_cause(tmp_path, capsys):
    (tmp_path / "a.log").write_text(log(API_END))
    assert main([str(tmp_path / "a.log")]) == 3
    assert "Engine core initialization failed" not in capsys.readouterr().out


def test_a_rule_of_the_table_speaks_before_the_exception():
    text = log(trace(ENGINE, "OddError: first"), trace(ENGINE, "xpu_moe.env.read.BadValue: XPU_MOE_EXPLAIN='x': no"))
    result = explain(text.splitlines())
    assert [f.code for f in result.findings] == ["log.own-value-refused"] and not result.unexplained


def test_program_text_is_no_complaint():
    text = log(trace(ENGINE, "OddError: x", "raise ValueError('cannot read VLLM_ODD_THING')"))
    assert [f.code for f in explain(text.splitlines()).findings] == [EXCEPTION]


@pytest.mark.parametrize("raised", ["KeyboardInterrupt", "SystemExit: 0", "asyncio.exceptions.CancelledError"])
def test_an_end_that_was_asked_for_is_no_failure(raised):
    result = explain((START + UP + "".join(line + "\n" for line in trace(API, raised))).splitlines())
    assert result.raised is None and not result.unexplained


PIECES = st.tuples(
    st.sampled_from(["", ENGINE, WORKER, API, "[rank0]: ", "    | ", "vllm-1  | "]),
    st.sampled_from(
        [*trace("", "OddError: x"), CAUSED, DURING, INIT, GONE, "", "  more", "KeyboardInterrupt", STOP, UP]
    )
    | st.text(max_size=40),
)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(st.lists(PIECES, max_size=40))
def test_any_order_of_lines_is_taken(pieces):
    result = explain(prefix + line for prefix, line in pieces)
    json.dumps(result.as_dict())
    assert result.raised is None or (result.failed and not result.raised.text().startswith(INIT[:40]))


def test_memory_stays_bounded_however_many_processes_raise():
    traces = Tracebacks()
    for number in range(2000):
        for line in trace(f"(Worker_TP{number} pid=1) ", "OddError: x")[:-1]:
            traces.feed(number, line)
    assert traces.failed and len(traces._open) <= 256


def test_a_traceback_without_an_end_is_given_up_and_counts_as_a_failure():
    traces = Tracebacks()
    for number, line in enumerate(trace(ENGINE, "OddError: x")[:-1]):
        traces.feed(number, line)
    assert traces.inside
    traces.feed(50_000, "fine")
    assert not traces.inside and traces.failed and not traces._open


def test_after_its_exception_a_traceback_keeps_nothing_from_being_passed_over():
    traces = Tracebacks()
    for number, line in enumerate(trace(ENGINE, "OddError: x")):
        traces.feed(number, line)
    assert not traces.inside and traces.root() is not None


def test_an_exception_at_the_seam_of_two_pieces_of_a_file_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(logfile, "CHUNK", 4096)
    fill = "(APIServer pid=41) INFO nothing to see here\n"
    for extra in range(0, 400, 7):
        (tmp_path / "a.log").write_text("x" * extra + "\n" + fill * 90 + log(trace(ENGINE, "odd.Surprise: here")))
        found = explain_file(tmp_path / "a.log").raised
        assert found is not None and found.type == "odd.Surprise"


QUIET = "(APIServer pid=41) INFO 11-30 15:20:02 [x.py:1] fine\n"
WARNED = "".join(
    line + "\n" for line in trace("(EngineCore pid=71) WARNING 11-30 15:19:40 [x.py:2] ", "ImportError: optional")
)
DEAD = trace("(APIServer pid=41) ERROR 11-30 15:57:38 [async_llm.py:906] ",
             "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for "
             "the root cause.", "raise self._format_exception(outputs) from None")  # fmt: skip
SURVIVED = log(trace(API, "OddError: tried and left")) + UP
RULE = next(line for line, about in LINES if about == "os.ram_bytes" and "CPU memory utilization" in line)
CODES = {
    "empty": ("", 0, None),
    "healthy": (START + UP + QUIET, 0, None),
    "a warning with a traceback, and up": (START + WARNED + UP, 0, None),
    "what was raised before the server came up": (SURVIVED, 0, None),
    "stopped by a signal": (START + UP + "\n".join([STOP, *DEAD, "INFO:     Shutting down", ""]), 0, None),
    "an engine that died": (START + UP + "\n".join([*DEAD, STOP, "INFO:     Shutting down", ""]), 3, None),
    "an exception of its own after the signal": (
        START + UP + "\n".join([STOP, *trace(ENGINE, "OddError: x"), *DEAD, ""]), 3, EXCEPTION),
    "never ended": (START, 3, None),
    "a traceback that no rule knows": (log(trace(ENGINE, "OddError: x"), API_END), 3, EXCEPTION),
    "a traceback cut off": (START + UP + "\n".join(trace(ENGINE, "OddError: x")[:-1]), 3, None),
    "a failure after the server came up": (
        START + UP + "ERROR:    Exception in ASGI application\n" + "\n".join(trace("", "OddError: x")), 3, EXCEPTION),
    "a rule": (log(trace(ENGINE, RULE), API_END), 2, "log.cpu-memory"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "code", "first"), CODES.values(), ids=CODES)
def test_exit_codes(tmp_path, capsys, text, code, first):
    (tmp_path / "a.log").write_text(text)
    assert main([str(tmp_path / "a.log"), "--json"]) == code
    found = json.loads(capsys.readouterr().out)
    assert found["unexplained"] == (code == 3)
    assert [f["code"] for f in found["findings"]][:1] == ([first] if first else [])


def test_the_help_lists_the_exit_codes(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert ended.value.code == 0
    assert all(f" {code} " in said[said.index("exit codes:") :] for code in (0, 1, 2, 3, 64, 74, 141))


def test_a_server_that_ended_when_told_to_is_not_said_to_complain(tmp_path, capsys):
    (tmp_path / "a.log").write_text(CODES["stopped by a signal"][0])
    assert main([str(tmp_path / "a.log")]) == 0
    said = capsys.readouterr().out
    assert said.startswith("the server came up\n") and "complains" not in said


def test_the_warning_about_open_files_of_every_start_is_no_complaint():
    line = next(line for line in HARMLESS if "Found ulimit" in line)
    assert explain([line]).complaint is None


def test_the_answer_for_people_names_line_process_and_exception(tmp_path, capsys):
    (tmp_path / "a.log").write_text(log(trace(WORKER, "OddError: the worker broke"), trace(ENGINE, GONE), API_END))
    assert main([str(tmp_path / "a.log")]) == 3
    said = capsys.readouterr().out
    assert said.startswith("likely cause: OddError: the worker broke [process.Worker_TP0]\n   line 9: (Worker_TP0) ")
    assert "no rule knows it" in said and "never ended: phase load" in said


def test_what_to_do_about_memory_on_a_cpu_names_the_settings():
    found = explain(log(trace(ENGINE, RULE), API_END).splitlines()).findings[0]
    assert "wants 21.66 GiB" in found.title and "21.55 GiB are free" in found.title
    assert all(
        w in found.fix for w in ("--kv-cache-memory-bytes", "VLLM_CPU_KVCACHE_SPACE", "--gpu-memory-utilization")
    )


def test_the_watcher_of_a_start_names_the_exception_too():
    watch = Watch(0.0)
    for line in log(trace(ENGINE, "OddError: the engine broke"), API_END).splitlines():
        watch.feed(line, 1.0)
    assert [finding.one_line().partition(" (")[0] for finding in watch.causes()] == ["OddError: the engine broke"]
