"""Logs: the recorded ones, every message of the table, odd files."""

from __future__ import annotations

import gzip
import json
import os
import random
import subprocess
import sys
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.doctor.log_lines import BLAMED, HARMLESS, LINES
from tests.doctor.rules_of_a_case import under
from tests.doctor.variants import CASES
from xpu_moe.doctor.logfile import NotALog, explain_file
from xpu_moe.doctor.logs import Explainer, explain, match
from xpu_moe.doctor.messages import MESSAGES

RECORDED = sorted((CASES / "logs").glob("*.log"))
STUCK = "No available shared memory broadcast block found in 60 seconds."


def explain_log(*arguments):
    command = [sys.executable, "-m", "xpu_moe.launch", "explain-log", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("file", RECORDED, ids=lambda file: file.stem)
def test_recorded_log_names_its_root_cause_first(file):
    wanted = json.loads(file.with_suffix(".json").read_text())["expect"]
    explanation = explain_file(file)
    for expected in wanted:
        assert any(under(f.about, expected["about"]) for f in explanation.findings), explanation.findings
    assert under(explanation.findings[0].about, wanted[0]["about"])


@pytest.mark.parametrize(("line", "about"), LINES, ids=[line[-60:] for line, _ in LINES])
def test_line_is_understood(line, about):
    finding = match(line)
    assert finding is not None and finding.about == about
    assert finding.fix and finding.why and "{" not in finding.title + finding.about + finding.fix


def test_every_message_of_the_table_is_met():
    codes = {finding.code for line, _ in LINES if (finding := match(line))}
    elsewhere = {"log.capture-out-of-resources", "log.cancelled", "log.transport-switched", "log.graph-variable-absent"}
    assert {message.code for message in MESSAGES} - codes <= elsewhere


@pytest.mark.parametrize("line", HARMLESS)
def test_harmless_line_is_silent(line):
    assert match(line) is None


@pytest.mark.parametrize(("name", "value"), BLAMED)
def test_symptom_is_blamed_on_the_changed_setting(name, value):
    lines = [f"|CCL_WARN| value of {name} changed to be {value} (default:-1)", "x Model loading took 28.1 GiB", STUCK]
    result = explain(lines)
    assert result.findings[0].about == f"env.{name}"
    assert result.stuck == "profile"


@pytest.mark.parametrize(
    ("asked", "line", "about"),
    [("'speculative_config': {'method': 'mtp'}", "ValueError: layer 62 weights missing from checkpoint",
      "plan.speculative_method"),
     ("'speculative_config': {'method': 'ngram_gpu'}", STUCK, "plan.speculative_method"),
     ("'enable_expert_parallel': True", STUCK, "plan.enable_expert_parallel"),
     ("'kv_cache_dtype': 'fp8'", "TimeoutError: RPC call to sample_tokens timed out.", "plan.kv_cache_dtype"),
     ("'kv_cache_dtype': 'fp8'", "type fp8e4nv not supported in this architecture", "plan.kv_cache_dtype")],
)  # fmt: skip
def test_what_was_asked_for_is_the_setting_to_change(asked, line, about):
    lines = [f"INFO [utils.py:253] non-default args: {{'model': 'm', {asked}}}", line]
    assert explain(lines).findings[0].about == about


def test_forced_peers_are_blamed_for_a_handle_that_does_not_open():
    lines = ["|CCL_WARN| value of CCL_TOPO_P2P_ACCESS changed to be 1 (default:-1)", "ze error at zeMemOpenIpcHandle"]
    assert explain(lines).findings[0].about == "env.CCL_TOPO_P2P_ACCESS"


def test_cause_comes_before_the_symptom_that_is_louder():
    lines = [STUCK] * 50 + ["ERROR RuntimeError: UR_RESULT_ERROR_DEVICE_LOST"]
    first, second = explain(lines).findings[:2]
    assert (first.about, second.count) == ("gpus", 50)


def test_out_of_resources_depends_on_the_phase():
    line = "RuntimeError: 40 (UR_RESULT_ERROR_OUT_OF_RESOURCES)"
    assert explain(["Starting to load model x", line]).findings[0].about == "gpus"
    assert explain(["Capturing CUDA graphs (decode)", line]).findings[0].about == "plan.cudagraph_capture_sizes"


def test_phases_and_the_one_that_never_ended():
    lines = (CASES / "logs" / "shm-broadcast-after-p2p-off.log").read_text().splitlines()
    result = explain(lines)
    assert [name for name, _, _ in result.phases] == ["start", "config", "engine", "collectives", "load", "profile"]
    assert result.stuck == "profile"
    assert explain([*lines, "INFO: Application startup complete."]).stuck is None


def test_a_finding_is_told_once_with_a_count():
    explainer = Explainer()
    assert explainer.feed(STUCK) is not None
    assert explainer.feed(STUCK) is None
    assert explainer.result().findings[0].count == 2


def test_escapes_and_markup_in_a_log_do_not_come_through():
    line = "\x1b[31mERROR\x1b[0m \x1b]8;;http://evil\x07KeyError: 'layers.1.gate.qweight'<b>x</b>\u202e"
    finding = match(line)
    assert finding is not None and finding.about == "model.tensor_names"
    shown = json.dumps(finding.as_dict(), ensure_ascii=False) + finding.one_line()
    assert not any(mark in shown for mark in ("\x1b", "<b>", "\u202e", "\x07"))


@pytest.mark.parametrize(
    "secret", ["hf_abcdefgh1234", "sk-verysecret99", "api_key='hunter2hunter2'", "--api-key hunter2hunter2",
               "Authorization: Bearer hunter2hunter2", '"token": "hunter2hunter2"', "HF_TOKEN=hunter2hunter2"],
)  # fmt: skip
def test_secrets_in_a_log_are_masked(secret):
    finding = match(f"ERROR ValueError: Unsupported data type of kv cache: fp8_inc, args {secret}")
    assert finding is not None
    shown = json.dumps(finding.as_dict())
    assert "***" in shown and not any(word in shown for word in ("hunter2", "hf_abc", "sk-very"))


def test_words_about_tokens_are_no_secrets():
    finding = match("ERROR ValueError: Unsupported data type of kv cache: fp8_inc, token budget exceeded, 4,224 tokens")
    assert finding is not None and "***" not in finding.text


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(st.lists(st.one_of(st.text(max_size=200), st.sampled_from([line for line, _ in LINES])), max_size=20))
def test_any_lines_never_raise(lines):
    json.dumps(explain(lines).as_dict())


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "latin-1"])
def test_encodings(tmp_path, encoding):
    file = tmp_path / "log"
    text = "INFO Gerät é\nINFO Starting to load model\nERROR UR_RESULT_ERROR_DEVICE_LOST\n"
    file.write_bytes(text.encode(encoding))
    result = explain_file(file)
    assert result.findings[0].about == "gpus" and result.findings[0].line == 3


def test_gzip(tmp_path):
    file = tmp_path / "log.gz"
    file.write_bytes(gzip.compress(b"x\nERROR UR_RESULT_ERROR_DEVICE_LOST\n"))
    assert explain_file(file).findings[0].about == "gpus"


@pytest.mark.slow
def test_a_binary_is_refused_in_one_line(tmp_path):
    file = tmp_path / "core"
    file.write_bytes(bytes(random.Random(1).randrange(0, 9) for _ in range(4096)))
    with pytest.raises(NotALog):
        explain_file(file)
    ended = explain_log(file)
    assert ended.returncode == 64 and "Traceback" not in ended.stderr and len(ended.stderr.splitlines()) == 1


@pytest.mark.slow
@pytest.mark.parametrize("make", [lambda p: None, lambda p: p.mkdir(), lambda p: p.write_bytes(b"\x1f\x8bnot gzip")])
def test_unreadable_file_is_one_line(tmp_path, make):
    file = tmp_path / "x\x1b[31m"
    make(file)
    ended = explain_log(file)
    assert ended.returncode == 64 and "Traceback" not in ended.stderr and "\x1b" not in ended.stderr


@pytest.mark.slow
def test_empty_file(tmp_path):
    file = tmp_path / "empty"
    file.write_bytes(b"")
    assert explain_log(file).returncode == 0


@pytest.mark.slow
def test_one_endless_line_is_bounded(tmp_path):
    file = tmp_path / "log"
    with file.open("wb") as out:
        for _ in range(40):
            out.write(b"x" * (1 << 20))
        out.write(b"\nERROR UR_RESULT_ERROR_DEVICE_LOST\n")
    assert explain_file(file).findings[0].about == "gpus"


@pytest.mark.slow
def test_ten_gigabytes_of_holes_end_soon_in_little_memory(tmp_path):
    """A sparse file: what it costs is reading and looking for the words, in constant memory."""
    file = tmp_path / "log"
    with file.open("wb") as out:
        out.write(b"INFO Starting to load model\n")
        out.seek(256 << 20)
        out.write(b"\nERROR UR_RESULT_ERROR_DEVICE_LOST\n")
    start = time.monotonic()
    result = explain_file(file)
    assert result.findings[0].about == "gpus" and time.monotonic() - start < 20


@pytest.mark.soak
def test_ten_gigabytes(tmp_path):
    file = tmp_path / "log"
    with file.open("wb") as out:
        out.write(b"INFO Starting to load model\n")
        out.seek(10 << 30)
        out.write(b"\nERROR UR_RESULT_ERROR_DEVICE_LOST\n")
    program = (
        # VmHWM and not ru_maxrss: the latter keeps what the process that forked this one had
        "import re,sys;from pathlib import Path;from xpu_moe.doctor.logfile import explain_file;"
        "r=explain_file(Path(sys.argv[1]));status=Path('/proc/self/status').read_text();"
        "print(r.findings[0].about, re.search(r'VmHWM:\\s+(\\d+) kB', status)[1])"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program, file], capture_output=True, text=True, timeout=500, check=True
    )
    about, kib = ended.stdout.split()
    assert about == "gpus" and int(kib) < 400 * 1024


@pytest.mark.slow
def test_json_is_one_object_and_the_exit_code_tells():
    ended = explain_log("--json", CASES / "logs" / "router-keyerror.log")
    found = json.loads(ended.stdout)
    assert ended.returncode == 2 and found["findings"][0]["about"] == "model.tensor_names"
    assert set(found["findings"][0]) >= {"code", "severity", "about", "title", "why", "fix", "source", "line", "text"}
    assert explain_log(CASES / "logs" / "unknown-vllm-variable.log").returncode == 1


@pytest.mark.slow
def test_text_answer_for_people():
    ended = explain_log(CASES / "logs" / "mpi-transport-init.log")
    assert "likely cause" in ended.stdout and "CCL_ATL_TRANSPORT=ofi" in ended.stdout
    assert "never ended: phase engine" in ended.stdout


@pytest.mark.slow
def test_closed_pipe_is_no_traceback():
    program = f"{sys.executable} -m xpu_moe.launch explain-log {CASES / 'logs' / 'router-keyerror.log'} | head -c 1"
    ended = subprocess.run(["bash", "-c", program], capture_output=True, text=True, timeout=60, env=dict(os.environ))
    assert "Traceback" not in ended.stderr


def test_a_word_far_out_in_a_long_line_is_read(tmp_path):
    file = tmp_path / "long.log"
    file.write_text(
        "E {" + "x, " * 9000 + "} zeMemOpenIpcHandle: ZE_RESULT_ERROR_INVALID_ARGUMENT " + "y" * 30000 + "\n"
    )
    found = explain_file(file)
    assert [finding.about for finding in found.findings][:1] == ["peer_access"] and found.lines == 1


class Slow(threading.Thread):
    """Writes a log into a pipe, its first byte alone."""

    def __init__(self, data: bytes, pipe) -> None:
        super().__init__(daemon=True)
        self.data, self.pipe = data, pipe

    def run(self) -> None:
        with self.pipe if hasattr(self.pipe, "write") else open(self.pipe, "wb", buffering=0) as out:
            out.write(self.data[:1])
            out.flush()
            time.sleep(0.05)
            out.write(self.data[1:])


@pytest.mark.parametrize("packed", [False, True])
def test_a_named_pipe_is_read_as_the_file_is(tmp_path, packed):
    log = RECORDED[0]
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = Slow(gzip.compress(log.read_bytes()) if packed else log.read_bytes(), pipe)
    writer.start()
    assert explain_file(pipe).as_dict() == explain_file(log).as_dict()
    writer.join(5)


def test_a_device_has_no_end_and_is_refused(capsys):
    from xpu_moe.launch.explain_log import main

    assert main(["/dev/zero", "--json"]) == 64
    out, err = capsys.readouterr()
    assert err == "explain-log: '/dev/zero': a device, which need not have an end; give it the text of a log\n"
    assert json.loads(out)["cannot"] in err


@pytest.mark.parametrize("name", ["-", "/dev/stdin"])
def test_standard_input_is_read(name):
    log = RECORDED[0]
    want = explain_file(log).as_dict()["findings"]
    assert want
    command = [sys.executable, "-m", "xpu_moe.launch", "explain-log", name, "--json"]
    with subprocess.Popen(["cat", str(log)], stdout=subprocess.PIPE) as cat:
        piped = subprocess.run(command, stdin=cat.stdout, capture_output=True, text=True, timeout=60, check=False)
    with log.open("rb") as file:
        redirected = subprocess.run(command, stdin=file, capture_output=True, text=True, timeout=60, check=False)
    assert json.loads(piped.stdout)["findings"] == json.loads(redirected.stdout)["findings"] == want


def test_a_closed_standard_input_is_one_line():
    command = f"{sys.executable} -m xpu_moe.launch explain-log - <&-"
    ended = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 64 and len(ended.stderr.splitlines()) == 1 and "Traceback" not in ended.stderr


def test_of_a_log_that_no_rule_knows_the_last_complaint_is_shown(tmp_path):
    (tmp_path / "a.log").write_text("start\nodd.StrangeError: first\nOddError: second thing\nbye\n")
    ended = explain_log(tmp_path / "a.log")
    assert ended.returncode == 3 and "the last line that complains is 3: OddError: second thing" in ended.stdout
    found = json.loads(explain_log("--json", tmp_path / "a.log").stdout)
    assert found["complaint"] == {"line": 3, "text": "OddError: second thing"}
    up = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
    (tmp_path / "a.log").write_text(f"OddError: the cause\n{up}\n")
    assert "complains is 1: OddError: the cause" in explain_log(tmp_path / "a.log").stdout
    (tmp_path / "a.log").write_text("")
    assert "no whole line in it" in explain_log(tmp_path / "a.log").stdout
