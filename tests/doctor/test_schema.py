"""Facts of a wrong type or name are said, and never taken for health."""

from __future__ import annotations

import json

import pytest

from tests.doctor.test_cases import RECORDED
from tests.doctor.test_collect import doctor
from tests.doctor.variants import B70, healthy
from xpu_moe.doctor import collect, judge
from xpu_moe.doctor.records import Gpu, Library, Model, Os
from xpu_moe.doctor.schema import GPU, LIBRARY, MODEL, OS, TOP


def unread(facts):
    found = [finding for finding in judge(facts, strict=True) if finding.code == "facts.unread"]
    assert {finding.severity for finding in found} <= {"warn"}
    return {finding.about for finding in found}


@pytest.mark.parametrize(("facts", "about"), [
    ({"gpus": "x"}, {"gpus"}),
    ({"gpus": [None, 1, []], "peer_access": [[1], 2], "python": [], "plan": [1]},
     {"gpus[0]", "gpus[1]", "gpus[2]", "peer_access", "python", "plan"}),
    ({"gpu": [], "os": {}}, {"gpu"}),
    ({"os": {"ram_bytes": float("nan"), "swap_bytes": float("inf"), "shm_bytes": -1, "yama_ptrace_scope": True}},
     {"os.ram_bytes", "os.swap_bytes", "os.shm_bytes", "os.yama_ptrace_scope"}),
    ({"os": {"ram": 1}, "gpus": [{"bar": 1, "memory_bytes": "24G"}], "libraries": [{"name": 1}, "libccl"]},
     {"os.ram", "gpus[0].bar", "gpus[0].memory_bytes", "libraries[0].name", "libraries[1]"}),
    ({"env": ["A=1"], "model": {"tensor_names": {}, "config": []}, "probe": 1, "paths_missing": "x"},
     {"env", "model.tensor_names", "model.config", "probe", "paths_missing"}),
    ({"python": {"packages": ["torch"], "version": 3.12}}, {"python.packages", "python.version"}),
    ({"os": {"shm_bytes": 10**400}, "deep": {}}, {"os.shm_bytes", "deep"}),
])  # fmt: skip
def test_what_is_of_another_type_or_name_is_warned_of(facts, about):
    assert unread({"schema": 1, **facts}) == about


def test_a_file_full_of_odd_keys_is_answered_in_short():
    assert len(unread({f"odd{n}": n for n in range(5000)})) == 50


@pytest.mark.parametrize("file", RECORDED, ids=lambda file: file.stem)
def test_recorded_cases_are_read_to_the_end(file):
    assert unread(json.loads(file.read_text())["facts"]) == set()


def test_what_is_collected_is_read_to_the_end(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "minimax_m2"}')
    assert unread(collect(model=tmp_path, plan={"device": "cpu"}, environ={"A": "1"})) == set()


def test_null_is_absent():
    facts = healthy(B70)
    absent = {**facts, "os": dict.fromkeys(facts["os"]), "gpus": [dict.fromkeys(facts["gpus"][0])], "libraries": None}
    assert unread(absent) == set()


@pytest.mark.parametrize(("part", "record", "own"), [
    (OS, Os, set()), (GPU, Gpu, {"position", "place"}), (LIBRARY, Library, set()),
    (MODEL, Model, {"quantization", "quantization_empty"}),
])  # fmt: skip
def test_every_field_that_rules_read_is_a_key(part, record, own):
    assert record.__dataclass_fields__.keys() - own <= part.keys()


@pytest.mark.parametrize(("content", "code", "words"), [
    ('{"schema": 1, "gpus": "x"}', 1, "gpus: got 'x', wanted a list of objects"),
    ('{"os": {"ram_bytes": 1e400}}', 1, "ram_bytes: got inf"),
    ("{}", 64, "holds no facts (keys: none)"), ('{"schema": 1}', 64, "holds no facts (keys: schema)"),
    ('{"gpu": []}', 64, "holds no facts (keys: gpu); wanted what `--save` writes: schema, os, gpus"),
])  # fmt: skip
def test_a_file_of_unusable_facts_is_not_healthy(tmp_path, content, code, words):
    file = tmp_path / "facts.json"
    file.write_text(content)
    ended = doctor("--facts", file)
    assert ended.returncode == code and words in ended.stdout + ended.stderr and "\nhealthy" not in ended.stdout


def test_every_part_is_a_key_of_the_top():
    assert {"os", "gpus", "libraries", "python", "probe", "model", "plan", "env"} <= TOP.keys()
