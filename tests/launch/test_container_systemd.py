"""The container line and the unit: what the doctor asks of them, and hostile words stay words."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path

import pytest

from tests.launch.test_checks import folder, plan_of
from xpu_moe.doctor.judge import judge
from xpu_moe.launch import args, build, container, detect, main, model, settings, systemd
from xpu_moe.launch.secrets import Masker


def words(tmp_path, kind, *argv):
    plan = plan_of(model.check(str(folder(tmp_path / "m"))), *argv, kind=kind)
    return container.words(plan, "/src", "/cache-of-mine", Masker()), plan


@pytest.mark.parametrize("kind", ["xpu", "cuda"])
def test_the_container_passes_the_doctors_rules(tmp_path, kind):
    line, plan = words(tmp_path, kind, "--tp", "4")
    environ = {row.name: row.value for row in plan.environment if row.value is not None}
    facts = {
        "schema": 1,
        "os": container.facts_of(line, kind),
        "gpus": [{"index": n, "memory_bytes": 32 << 30} for n in range(4)],
        "env": environ,
        "plan": {**plan.facts(), "tp": 4},
    }
    complaints = [f for f in judge(facts) if f.about.startswith(("os", "env")) and f.severity != "info"]
    assert not complaints, complaints


@pytest.mark.parametrize(
    ("flag", "about"), [("--shm-size", "os.shm_bytes"), ("/dev/dri/by-path:/dev/dri/by-path:ro", "os.dri_by_path")]
)
def test_the_doctor_would_notice_what_is_left_out(tmp_path, flag, about):
    line, plan = words(tmp_path, "xpu", "--tp", "4")
    cut = line.index(flag)
    cut -= flag.startswith("/")
    left = line[:cut] + line[cut + 2 :]
    facts = {
        "schema": 1,
        "os": container.facts_of(left, "xpu"),
        "gpus": [{"index": n, "memory_bytes": 32 << 30} for n in range(4)],
        "env": {},
        "plan": {**plan.facts(), "tp": 4},
    }
    assert about in {finding.about for finding in judge(facts)}


def test_the_container_line(tmp_path):
    line, plan = words(tmp_path, "xpu", "--tp", "4", "--", "--api-key", "sesame")
    text = shlex.join(line)
    assert f"--volume {plan.model.path}:/model:ro" in text and "--publish 127.0.0.1:8000:8000" in text
    assert "--env VLLM_API_KEY " in text and "sesame" not in text
    assert "--device /dev/dri:/dev/dri" in text and "--privileged" not in text


def test_the_container_gets_the_profile_and_every_setting(tmp_path):
    line, _ = words(tmp_path, "xpu", "--profile", "b70-tp4-graph", "--graph", "off", "--dcp", "2", "--backend", "esimd")
    text = shlex.join(line)
    for wanted in ("--profile b70-tp4-graph", "--graph off", "--dcp 2", "--backend esimd", "--block-size 256"):
        assert wanted in text
    told = {*container._FORWARDED, "host", "port", "ccl_ipc", "input_len", "output_len", "num_prompts"}
    assert told == set(settings.BY_NAME)  # ccl_ipc travels as a variable; the bench line is printed outside


def test_a_snapshot_is_mounted_with_the_blobs_that_its_links_lead_to(tmp_path):
    root = tmp_path / "models--Some--MiniMax-INT4"
    found = model.check(str(folder(root / "snapshots" / "0123abcd")))
    text = shlex.join(container.words(plan_of(found, kind="xpu"), "/src", "/c", Masker()))
    assert f"--volume {root}:/model:ro" in text and "--model /model/snapshots/0123abcd" in text
    assert "--served-model-name MiniMax-INT4" in text


def test_the_demo_is_written_inside_the_container():
    demo = build.build(args.parse(["--demo"]), main.planned_demo(), detect.Found("cpu", 1, "test"), {}, vllm="vllm",
                       run_folder=Path("/run-folder"), make_folders=False)  # fmt: skip
    line = container.words(demo, "/src", "/c", Masker())
    assert "--demo" in line and "--model" not in line and not any(":/model" in word for word in line)


def test_a_path_with_a_colon_is_mounted_whole(tmp_path):
    found = model.check(str(folder(tmp_path / 'a:b,"c"')))
    line = container.words(plan_of(found, kind="xpu"), "/src", "/c", Masker())
    mount = line[line.index("--mount") + 1]
    assert next(csv_fields(mount))[1] == f"src={found.path}"


def csv_fields(line):
    import csv

    return csv.reader([line])


def test_the_unit(tmp_path):
    found = model.check(str(folder(tmp_path / 'with $HOME %h and "q"\nx')))
    plan = plan_of(found, kind="cuda", environ={"TP": "2"})
    argv = ["--model", str(found.path), "--print-systemd", "--", "--api-key", "sesame", "--enable-prefix-caching"]
    unit = systemd.text(plan, argv, tmp_path, Masker())
    start = next(line for line in unit.splitlines() if line.startswith("ExecStart="))
    assert "$$HOME %%h" in start and '\\"q\\"\\nx' in start and '"--tp" "2"' in start
    assert "sesame" not in unit and "--api-key" not in unit and '"--enable-prefix-caching"' in start
    for wanted in ("Type=notify", "Restart=on-failure", "StartLimitBurst=3", "TimeoutStopSec=30", "WantedBy=default"):
        assert wanted in unit


def test_the_unit_is_told_what_the_shell_knew(tmp_path, monkeypatch):
    found = model.check(str(folder(tmp_path / "m")))
    for name in ("vllm", "python"):
        (tmp_path / "conda" / "bin").mkdir(parents=True, exist_ok=True)
        (tmp_path / "conda" / "bin" / name).touch()
    monkeypatch.setenv("XPU_MOE_CACHE", "/fast/50% $x")
    plan = build.build(args.parse(["--model", str(found.path), "--tp", "4"]), found, detect.Found("xpu", 5, "test"),
                       {"ZE_AFFINITY_MASK": "1,2,3,4"}, vllm=str(tmp_path / "conda/bin/vllm"), run_folder=found.path,
                       make_folders=False)  # fmt: skip
    unit = systemd.text(plan, ["--model", str(found.path), "--tp", "4"], tmp_path, Masker())
    assert 'Environment="ZE_AFFINITY_MASK=1,2,3,4"' in unit and 'Environment="XPU_MOE_CACHE=/fast/50%% $x"' in unit
    assert f'Environment="VIRTUAL_ENV={tmp_path}/conda"' in unit
    ours = systemd.environment(dataclasses.replace(plan, command=(str(tmp_path / ".venv/bin/vllm"),)), tmp_path)
    assert "VIRTUAL_ENV" not in ours
