"""The container line and the unit: what the doctor asks of them, and hostile words stay words."""

from __future__ import annotations

import shlex

import pytest

from tests.launch.test_checks import folder, plan_of
from xpu_moe.doctor.judge import judge
from xpu_moe.launch import container, model, systemd
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
