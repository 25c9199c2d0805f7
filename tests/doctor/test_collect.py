"""Collecting: from a made-up machine, from this one, and from machines that do not cooperate."""

from __future__ import annotations

import getpass
import importlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.doctor.fake_root import GIB, machine
from tests.doctor.variants import B70, CASES, healthy
from tests.launch.conftest import alive
from tests.plan.shapes_of_models import MINIMAX_INT4
from xpu_moe.doctor import collect, judge
from xpu_moe.doctor.collect.private import private
from xpu_moe.doctor.collect.where import Where
from xpu_moe.doctor.facts import Facts
from xpu_moe.env.registry import find
from xpu_moe.env.variable import Variable

SERIAL = "f2d1c3e-1111-2222-3333-444455556666"
SECRETS = {"HF_TOKEN": "hf_abcdefghij0123", "VLLM_API_KEY": "sk-verysecret123", "OPENAI_API_KEY": "sk-other123456",
           "MY_PRIVATE_THING": "x"}  # fmt: skip


def module(name):
    """A module of the room; the room's public functions bear names of modules."""
    return importlib.import_module(f"xpu_moe.doctor.{name}")


def doctor(*arguments, env=None, **more):
    command = [sys.executable, "-m", "xpu_moe.doctor", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False,
                          env={**os.environ, **(env or {})}, **more)  # fmt: skip


def test_a_made_up_machine(tmp_path):
    found = collect(environ={"CCL_ZE_CACHE": "0"}, root=machine(tmp_path))
    system = found["os"]
    assert system["kernel"] == "6.17.0-23-generic" and system["distro"] == "Ubuntu 24.04.3 LTS"
    assert system["in_container"] is True and system["seccomp"] is True and system["yama_ptrace_scope"] == 1
    assert system["capabilities"] == ["SYS_PTRACE"] and system["iommu"] == "on" and system["dri_by_path"] is True
    assert system["ram_bytes"] == 131072000 * 1024 and system["swap_bytes"] == 8388608 * 1024
    first, second = found["gpus"]
    assert (first["device_id"], first["name"], first["guc"]) == ("0xe223", "Intel Arc B70", "70.49.4")
    assert first["memory_bytes"] == first["bar_bytes"] == 32 * GIB
    assert (first["link_gts"], first["link_width"], first["display_attached"]) == (32.0, 16, True)
    assert (second["link_gts"], second["link_width"], second["root_port"]) == (8.0, 1, "0000:00:01.0")
    abouts = {
        f.about for f in judge({**found, "plan": {"device": "xpu", "tp": 2}}, strict=True) if f.severity == "warn"
    }
    assert {"env.CCL_ZE_CACHE", "gpus[1].link_width", "os.iommu"} <= abouts


def test_what_is_collected_is_schema_1(tmp_path):
    found = collect(plan={"tp": 1}, environ={}, root=machine(tmp_path))
    assert found["schema"] == 1
    assert set(found) <= {
        "schema",
        "os",
        "gpus",
        "peer_access",
        "libraries",
        "python",
        "env",
        "model",
        "plan",
        "probe",
        "paths_missing",
    }
    allowed = {*healthy(B70)["os"], "dri_access", "compute_runtime", "compiler"}
    assert set(found["os"]) <= allowed and set(found["gpus"][0]) <= {*healthy(B70)["gpus"][0], "driver"}


def test_a_card_without_driver_and_a_machine_without_compute_runtime(tmp_path):
    """What a fresh Linux lacks: the doctor must not call it healthy, before anything is installed."""
    root = machine(tmp_path)
    assert {gpu["driver"] for gpu in collect(environ={}, root=root)["gpus"]} == {"xe"}
    for link in (root / "sys/devices").rglob("driver"):
        link.unlink()
    (root / "usr/lib").mkdir(parents=True)
    found = collect(environ={}, root=root)
    assert found["os"]["compute_runtime"] is False and found["gpus"][1]["driver"] == "none"
    said = {f.about: f for f in judge(found, strict=True) if f.severity == "error"}
    assert "modprobe xe" in said["gpus"].fix and "libze-intel-gpu1" in said["os.compute_runtime"].fix
    cpu = judge({**found, "plan": {"device": "cpu", "tp": 1}}, strict=True)
    assert not {f.about for f in cpu} & {"gpus", "os.compute_runtime"}


def test_a_machine_without_a_compiler(tmp_path):
    root = machine(tmp_path)
    (root / "usr/bin").mkdir(parents=True)
    environ = {"PATH": "/usr/bin:/bin", "LD_LIBRARY_PATH": ""}
    plan = {"device": "xpu", "tp": 2}
    found = collect(plan=plan, environ=environ, root=root)
    assert found["os"]["compiler"] is False
    assert any(f.about == "os.compiler" and f.severity == "warn" for f in judge(found, strict=True))
    (root / "usr/bin/g++").touch(mode=0o755)
    assert collect(plan=plan, environ=environ, root=root)["os"]["compiler"] is True
    assert "compiler" not in collect(plan=plan, environ={**environ, "CXX": "icpx"}, root=root)["os"]


@pytest.mark.parametrize("place", ["usr/lib64/libze_intel_gpu.so.1", "run/opengl-driver/lib/libze_intel_gpu.so.1", ""])
def test_where_the_compute_runtime_is_found(tmp_path, place):
    root = machine(tmp_path)
    (root / "usr/lib").mkdir(parents=True)
    file = root / (place or "etc/ld.so.cache")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"ld.so-1.7.0\0libze_intel_gpu.so.1\0/opt/x/libze_intel_gpu.so.1\0")
    assert collect(environ={}, root=root)["os"]["compute_runtime"] is True


def test_entries_of_sys_that_vanish(tmp_path, monkeypatch):
    """Every file may go between listing and reading: the part is absent, the others are there."""
    root = machine(tmp_path)
    real, calls = Path.open, [0]

    def vanishing(self, *arguments, **more):
        if str(self).startswith(f"{root}/sys/"):
            calls[0] += 1
            if calls[0] % 2:
                raise FileNotFoundError(2, "No such file or directory", str(self))
        return real(self, *arguments, **more)

    monkeypatch.setattr(Path, "open", vanishing)
    for _ in range(5):
        found = collect(environ={}, root=root)
        assert found["os"]["kernel"] and "unread" not in found
        judge(found, strict=True)
    assert calls[0] > 20


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), ValueError("odd"), RuntimeError("odd")])
def test_a_source_that_fails_leaves_the_others(tmp_path, monkeypatch, error):
    def failing(where):
        raise error

    monkeypatch.setattr(
        module("collect"), "_SOURCES", (("gpus", "cards", failing), ("x", "x", lambda where: {"os": {}}))
    )
    found = collect(environ={}, root=tmp_path)
    assert found["unread"] == [f"gpus: {type(error).__name__}"] and found["os"] == {}


def test_an_empty_machine(tmp_path):
    found = collect(environ={}, root=tmp_path)
    assert "gpus" not in found and not [f for f in judge(found, strict=True) if f.severity == "error"]


def test_no_dev_shm(tmp_path):
    root = machine(tmp_path)
    (root / "dev/shm").rmdir()
    found = collect(environ={}, root=root, plan={"device": "xpu", "tp": 2})
    assert found["os"]["shm_bytes"] == 0
    assert any(f.about == "os.shm_bytes" and f.severity == "error" for f in judge(found, strict=True))


def test_garbage_in_sys(tmp_path):
    root = machine(tmp_path)
    for file in (root / "sys/devices").rglob("*"):
        if file.is_file() and file.name not in ("vendor", "class", "device"):
            file.write_bytes(b"\xff\xfe\x00garbage \x1b[31m")
    found = module("collect.gpus").facts(Where(root, {}))
    assert len(found["gpus"]) == 2
    judge({"schema": 1, **found}, strict=True)


def test_only_registered_names_and_no_secrets(tmp_path):
    environ = {**SECRETS, "CCL_ALLREDUCE": "topo", "HOME": "/home/alice", "CCL_ROOT": "/home/alice/oneapi",
               "LD_LIBRARY_PATH": f"{Path.home()}/lib:/opt/x", "SOME_UNKNOWN": "1",
               "CCL_UNKNOWN_THING": "2"}  # fmt: skip
    found = collect(environ=environ, root=tmp_path)
    assert all(find(name) for name in found["env"])
    text = json.dumps(found)
    for secret in SECRETS.values():
        assert len(secret) < 3 or secret not in text
    assert "alice" not in text and "SOME_UNKNOWN" not in text and "CCL_UNKNOWN_THING" not in text
    assert found["env"]["CCL_ALLREDUCE"] == "topo" and found["env"]["CCL_ROOT"] == "~/oneapi"


def test_a_stale_folder_is_told(tmp_path):
    (tmp_path / "there").mkdir()
    environ = {"FI_PROVIDER_PATH": "/gone/prov", "CCL_KERNEL_PATH": "/there"}
    assert collect(environ=environ, root=tmp_path)["paths_missing"] == ["FI_PROVIDER_PATH"]


def test_a_registered_secret_is_masked(tmp_path, monkeypatch):
    environment = module("collect.environment")

    monkeypatch.setattr(environment, "find", lambda name: Variable(name, "str", "x", "vllm", secret=True))
    assert environment.facts(Where(tmp_path, {"ANY": "value"})) == {"env": {"ANY": "***"}}


@pytest.mark.parametrize(
    ("value", "want"),
    [("/home/bob/models", "~/models"), ("/Users/bob/x:/root/y", "~/x:~/y"), ("http://u:p@host/x", "http://***@host/x"),
     ("token hf_abcdefgh1234", "token ***"), (f"GPU-8{SERIAL},GPU-9{SERIAL}", "GPU-0,GPU-1")],
)  # fmt: skip
def test_personal_parts_are_taken_out(value, want):
    assert private(value) == want


@pytest.mark.slow
def test_nothing_personal_of_this_machine_is_recorded(tmp_path):
    file = tmp_path / "facts.json"
    model = tmp_path / "m"
    model.mkdir()
    (model / "config.json").write_text(
        json.dumps({**MINIMAX_INT4, "_name_or_path": "/home/carol/secret-model", "made_by": {"at": ["/home/carol/x"]}})
    )
    ended = doctor("--save", file, "--model", model, "--json", env={**SECRETS, "CCL_ALLREDUCE": "topo"})
    assert ended.returncode == 2  # a folder without weights
    text = file.read_text() + ended.stdout
    assert "carol" not in text and str(tmp_path) not in text
    for word in (socket.gethostname(), getpass.getuser() if getpass.getuser() != "root" else "/root/"):
        assert len(word) < 4 or not re.search(rf"\b{re.escape(word)}\b", text)
    assert not any(secret in text for secret in SECRETS.values() if len(secret) > 3)
    assert json.loads(file.read_text())["env"]["CCL_ALLREDUCE"] == "topo"
    assert Facts.of(json.loads(file.read_text())).model.model_type == "minimax_m2"


def test_default_run_is_fast_and_without_torch():
    program = (
        "import sys\nclass No:\n def find_spec(self, name, path=None, target=None):\n"
        "  assert name.split('.')[0] not in ('torch', 'vllm'), name\n"
        "sys.meta_path.insert(0, No())\nfrom xpu_moe.doctor.__main__ import main\nsys.exit(main(['--json']))"
    )
    start = time.monotonic()
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode in (0, 1, 2), ended.stderr
    assert set(json.loads(ended.stdout)) == {"schema", "seen", "findings", "exit"}
    assert time.monotonic() - start < 10  # 3 s on an idle machine; the suite shares its cores


def test_phases_are_told(tmp_path):
    told = []
    collect(environ={}, root=tmp_path, on_phase=told.append)
    assert "reading the cards" in told


@pytest.mark.slow
@pytest.mark.parametrize("code", [0, 1, 2])
def test_exit_codes_and_json(code):
    case = {0: "healthy-4xb70-default", 1: "ze-cache-off", 2: "kv-fp8-inc"}[code]
    ended = doctor("--facts", CASES / "facts" / f"{case}.json", "--json")
    found = json.loads(ended.stdout)
    assert ended.returncode == found["exit"] == code
    assert all(set(f) == {"code", "severity", "about", "title", "why", "fix", "source"} for f in found["findings"])
    assert len(ended.stdout.splitlines()) == 1


@pytest.mark.slow
def test_text_for_people():
    ended = doctor("--facts", CASES / "facts" / "kv-fp8-inc.json")
    assert "error plan.kv_cache_dtype" in ended.stdout and "do: --kv-cache-dtype auto" in ended.stdout


@pytest.mark.slow
@pytest.mark.parametrize("content", ["", "{", "[1]", '"x"', "\xff", "{" * 100000])
def test_bad_facts_files_are_one_line(tmp_path, content):
    file = tmp_path / "facts.json"
    file.write_text(content, encoding="latin-1")
    ended = doctor("--facts", file)
    assert ended.returncode == 64 and len(ended.stderr.splitlines()) == 1 and "Traceback" not in ended.stderr


@pytest.mark.parametrize("option", ["--facts", "--plan"])
def test_a_pipe_or_a_device_is_refused_at_once_by_the_arguments_name(capsys, tmp_path, option):
    from xpu_moe.doctor.__main__ import main

    os.mkfifo(tmp_path / "pipe")
    for file, kind in ((tmp_path / "pipe", "a pipe"), (Path("/dev/zero"), "a device"), (tmp_path, "a folder")):
        assert main([option, str(file), "--json"]) == 64
        out, err = capsys.readouterr()
        assert f"{option}: got {str(file)!r}, which is {kind}, wanted a regular file of JSON" in err
        assert json.loads(out) == {"ok": False, "cannot": err.partition(": ")[2].strip()}


@pytest.mark.slow
def test_saved_facts_are_judged_the_same(tmp_path):
    file = tmp_path / "facts.json"
    first = doctor("--save", file, "--json")
    second = doctor("--facts", file, "--json")
    assert json.loads(first.stdout) == json.loads(second.stdout)


@pytest.mark.slow
def test_save_into_nowhere_is_one_line(tmp_path):
    ended = doctor("--save", tmp_path / "no" / "where.json")
    assert ended.returncode == 64 and "Traceback" not in ended.stderr and list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_home_that_cannot_be_written_or_does_not_exist(tmp_path):
    home = tmp_path / "home"
    home.mkdir(mode=0o500)
    for place in (home, tmp_path / "none"):
        ended = doctor("--json", env={"HOME": str(place), "XDG_CACHE_HOME": "", "XPU_MOE_CACHE": str(place / "c")})
        assert ended.returncode in (0, 1, 2), ended.stderr
        assert "Traceback" not in ended.stderr


@pytest.mark.slow
def test_plan_and_model_are_judged_together(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(MINIMAX_INT4))
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"device": "xpu", "tp": 8}))
    found = json.loads(doctor("--model", tmp_path, "--plan", plan, "--json").stdout)
    assert any(f["about"] == "plan.tp" and f["severity"] == "error" for f in found["findings"])


@pytest.mark.parametrize(("index", "word"), [("{", "no JSON"), ('{"weight_map": {"a": "gone.safetensors"}}', "gone")])
def test_corrupt_index_is_an_error_finding(tmp_path, index, word):
    (tmp_path / "config.json").write_text(json.dumps(MINIMAX_INT4))
    (tmp_path / "model.safetensors.index.json").write_text(index)
    findings = judge(collect(model=tmp_path, environ={}, root=tmp_path), strict=True)
    assert any(f.severity == "error" and f.about.startswith("model.") and word in f.why for f in findings)


def test_deep_asks_in_a_child_and_keeps_its_limit(tmp_path, monkeypatch):
    deeper = module("collect.deeper")

    answer = {"libraries": [{"name": "libccl.so.2", "path": "x", "version": "2022.1.2"}], "peer_access": [[True]],
              "gemm": [False]}  # fmt: skip
    script = tmp_path / "python"
    script.write_text(f"#!/bin/sh\necho noise\necho '{json.dumps(answer)}'\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    found = {"gpus": [{"index": 0}], "libraries": [{"name": "libccl.so.1.0", "version": "2021.14"}]}
    deeper.merge(found, Where(tmp_path, {}))
    assert found["deep"] == "done" and found["libraries"] == answer["libraries"]
    assert found["gpus"][0]["gemm_exact"] is False
    script.write_text("#!/bin/sh\nsleep 60 & echo $! > child; wait\n")
    monkeypatch.setattr(deeper, "LIMIT_S", 3)
    monkeypatch.chdir(tmp_path)
    start = time.monotonic()
    deeper.merge(found, Where(tmp_path, dict(os.environ)))
    assert found["deep"] == "no answer in 3 s" and time.monotonic() - start < 20
    child = int((tmp_path / "child").read_text())
    end = time.monotonic() + 20  # on a busy machine a killed process takes a moment to be gone
    while alive(child):
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("source", "code", "says"),
    [("raise ImportError('libsycl.so.9: cannot open')", "deep.torch", "ImportError: libsycl.so.9: cannot open"),
     ("import no_such_part", "deep.torch", "No module named 'no_such_part'"),
     ("import os; os.abort()", "deep.ended", "crashed or hung"),
     ("class xpu:\n is_available = lambda: 1\n def device_count(): raise RuntimeError('DEVICE_LOST')\nfloat16 = 1",
      "deep.cards", "RuntimeError: DEVICE_LOST")],
)  # fmt: skip
def test_deep_says_what_fails_in_the_child(tmp_path, source, code, says):
    (tmp_path / "torch.py").write_text(source + "\n")
    path = os.pathsep.join((str(tmp_path), str(Path(__file__).parents[2])))
    found = json.loads(doctor("--deep", "--json", env={"PYTHONPATH": path}).stdout)
    (finding,) = (f for f in found["findings"] if f["code"] == code)
    assert found["exit"] == 2 and says in finding["why"]


def test_a_folder_without_a_torch_in_it_is_no_torch_for_the_child(tmp_path):
    (tmp_path / "torch").mkdir()
    path = os.pathsep.join((str(tmp_path), str(Path(__file__).parents[2])))
    command = [sys.executable, "-S", "-m", "xpu_moe.doctor.deep"]  # -S: no real torch behind it
    ended = subprocess.run(command, env={"PYTHONPATH": path}, capture_output=True, text=True)
    assert "no attribute 'float16'" in json.loads(ended.stdout)["failed"]["torch"]


def test_parsers_are_read_in_vllms_source(tmp_path):
    """Today's table of lazy registrations, and the decorators of older releases; nothing is imported."""
    source = module("collect.vllm_source")
    tools, old = tmp_path / "tool_parsers", tmp_path / "reasoning"
    tools.mkdir()
    old.mkdir()
    (tools / "__init__.py").write_text("_TOOL_PARSERS_TO_REGISTER = {'minimax_m2': ('f', 'C'), 'hermes': ('g', 'D')}")
    (old / "a.py").write_text('@ReasoningParserManager.register_module(["qwen3", "other"])\nclass A: pass')
    (old / "b.py").write_text("@ReasoningParserManager.register_module('minimax_m2')\nclass A(: broken")
    assert source.parsers(tmp_path) == {"tool": ["hermes", "minimax_m2"], "reasoning": ["minimax_m2", "other", "qwen3"]}


@pytest.mark.vllm
def test_parsers_of_the_installed_vllm():
    found = module("collect.vllm_source").parsers()
    assert "minimax_m2" in found["tool"] and {"minimax_m2", "minimax_m2_append_think"} <= set(found["reasoning"])


@pytest.mark.slow
def test_deep_on_this_machine():
    """torch and vLLM are asked in the child; without an accelerator it has no peers and no products."""
    found = json.loads(doctor("--deep", "--json").stdout)
    assert found["exit"] in (0, 1, 2)


def test_names_of_people_hosts_and_addresses_are_taken_out(monkeypatch):
    monkeypatch.setattr(module("collect.private"), "_names", lambda: (("carol", "user"), ("tower7", "host")))
    found = module("collect.private").masked(
        {
            "MASTER_ADDR": "tower7.example.org", "VLLM_HOST_IP": "10.20.30.44", "CCL_KVS_IP_PORT": "127.0.0.1_5000",
            "NCCL_SOCKET_IFNAME": "enx001122aabbcc", "SYCL_CACHE_DIR": "/users/dave/sycl", "CCL_KVS_IFACE": "lo",
            "LD_LIBRARY_PATH": "/data/carol/lib:/var/home/dave/lib", "VLLM_CACHE_ROOT": "/mnt/tower7/10.1.2.3/cache",
            "HF_TOKEN": "hf_x",
        }
    )  # fmt: skip
    text = " ".join(found.values())
    assert not any(word in text for word in ("tower7", "10.", "0011", "dave", "carol", "hf_x")), found
    assert found["CCL_KVS_IFACE"] == "lo" and found["CCL_KVS_IP_PORT"] == "127.0.0.1_5000"
    assert private("0.1.15.2") == "0.1.15.2"
    assert private("mail carol@example.org of it") == "mail mail of it"


def test_save_writes_into_a_device_and_never_over_it(capsys, tmp_path):
    main = module("__main__").main
    assert main(["--save", "/dev/null"]) in (0, 1, 2)
    assert Path("/dev/null").is_char_device()
    link, target = tmp_path / "link", tmp_path / "facts.json"
    link.symlink_to(target)
    assert main(["--save", str(link)]) in (0, 1, 2)
    assert link.is_symlink() and json.loads(target.read_text())["schema"] == 1
    assert main(["--save", str(tmp_path / "no" / "x.json")]) == 64
    assert f"doctor: {tmp_path}/no/x.json: No such file or directory" in capsys.readouterr().err


def test_save_into_a_pipe_waits_for_nobody(capsys, tmp_path):
    main, pipe = module("__main__").main, tmp_path / "pipe"
    os.mkfifo(pipe)
    assert main(["--save", str(pipe), "--json"]) == 64
    assert "a pipe that nobody reads" in json.loads(capsys.readouterr().out)["cannot"]
    assert main(["--save", str(tmp_path), "--json"]) == 64
    assert "which is a folder" in json.loads(capsys.readouterr().out)["cannot"]
    reader = subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 20
    while main(["--save", str(pipe)]) == 64 and time.monotonic() < deadline:  # until cat has opened it
        time.sleep(0.01)
    assert json.loads(reader.communicate(timeout=20)[0])["schema"] == 1


def test_an_interrupted_doctor_leaves_no_child(tmp_path, monkeypatch):
    deeper = module("collect.deeper")
    script = tmp_path / "python"
    script.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/child; sleep 1; kill -INT $PPID; exec sleep 60\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever started the tests
    try:
        with pytest.raises(KeyboardInterrupt):
            deeper.merge({}, Where(tmp_path, dict(os.environ)))
    finally:
        signal.signal(signal.SIGINT, before)
    assert not alive(int((tmp_path / "child").read_text()))
