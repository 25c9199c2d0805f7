"""`python -m xpu_moe.plan`, as users type it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.plan.shapes_of_models import MINIMAX_INT4, QWEN3_8B
from xpu_moe.plan.__main__ import main
from xpu_moe.plan.profiles import PROFILES


@pytest.fixture
def model(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(MINIMAX_INT4))
    return str(tmp_path)


def answer(capsys, *arguments):
    code = main([*arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_the_published_line(capsys, model):
    code, found = answer(
        capsys, "--model", model, "--tp", "4", "--card", "b70", "--kv-cache-memory-bytes", "256M", "--block-size", "64",
        "--max-model-len", "2048",
    )  # fmt: skip
    assert code == 0 and found["fits"] is True
    assert (found["kv_bytes_per_token"], found["kv_tokens"]) == (63488, 4224)
    assert found["weights_bytes"] / 2**30 == pytest.approx(28.0, rel=0.03)


def test_without_a_length_the_kv_size_is_the_limit(capsys, model):
    code, found = answer(capsys, "--model", model, "--tp", "4", "--card", "b70", "--kv-cache-memory-bytes", "256M",
                         "--block-size", "64")  # fmt: skip
    assert code == 0 and found["kv_tokens"] == 4224


def test_what_does_not_fit_ends_with_one(capsys, model):
    code, found = answer(capsys, "--model", model, "--tp", "4", "--card", "b60")
    assert code == 1 and found["fits"] is False and "weights" in found["why"]


@pytest.mark.parametrize(("card", "fits"), [("b70", True), ("b580", False)])
def test_what_does_not_fit_is_told_where_it_would(capsys, model, card, fits):
    """Twelve GB a card: TP8 would be too small still, and slices of 96 columns do not hold a group of 128."""
    assert main(["--model", model, "--tp", "2", "--card", card]) == 1
    said = capsys.readouterr().out
    assert ("; --tp 4 fits" in said) == fits and ("--tp" in said) == fits
    assert "--kv-cache-memory-bytes 0" not in said


def test_roofline_with_a_probes_file(capsys, model, tmp_path):
    probe = tmp_path / "probe.json"
    probe.write_text(json.dumps({"schema": 1, "rows": [{"bytes": 6144, "p50_us": 15.0, "ok": True}]}))
    code, found = answer(capsys, "--model", model, "--tp", "4", "--card", "b70", "--roofline", "--probe", str(probe))
    assert code == 0 and found["roofline"]["latency_source"] == "probe"
    assert found["roofline"]["tok_per_s"] == pytest.approx(166, rel=0.01)


@pytest.mark.parametrize("name", list(PROFILES))
def test_profiles_by_name(capsys, model, name):
    code, found = answer(capsys, "--model", model, "--profile", name)
    assert code == 0 and found["profile"] == name and found["proved"] is PROFILES[name].proved


def test_list_of_profiles(capsys):
    code, found = answer(capsys, "--profiles")
    assert code == 0 and {p["profile"] for p in found["profiles"]} == set(PROFILES)


def test_text_and_picture(capsys, model, tmp_path):
    code = main(["--model", model, "--profile", "b70-tp4-graph", "--roofline", "--plot", str(tmp_path / "p.png")])
    out = capsys.readouterr().out
    assert code == 0 and "unproved on this machine" in out and "187 all-reduces" in out
    assert (tmp_path / "p.png").stat().st_size > 1000


@pytest.mark.parametrize(
    "arguments",
    [["--tp", "5"], ["--tp", "3"], ["--tp", "0"], ["--kv-cache-memory-bytes", "4GiB"], ["--block-size", "-1"],
     ["--gpu-memory-utilization", "1.5"], ["--roofline", "--probe", "/nonexistent"], ["--roofline", "--batch", "0"],
     ["--card", "cpu", "--roofline"]],
)  # fmt: skip
def test_wrong_arguments_end_with_two_and_a_line(capsys, model, arguments):
    assert main(["--model", model, *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("plan: ") and "Traceback" not in error and len(error.splitlines()) == 1


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"hidden_size": 1e999}'])
def test_bad_configs_end_with_two(capsys, tmp_path, content):
    (tmp_path / "config.json").write_text(content)
    assert main(["--model", str(tmp_path), "--tp", "1"]) == 2
    assert main(["--model", str(tmp_path / "none"), "--tp", "1"]) == 2
    assert main([]) == 2


def test_any_model(capsys, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(QWEN3_8B))
    code, found = answer(capsys, "--model", str(tmp_path / "config.json"), "--card", "b60", "--max-model-len", "8192")
    assert code == 0 and found["weights_source"] == "config" and found["sequences"] >= 1


def test_needs_no_torch(model):
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "from xpu_moe.plan.__main__ import main\n"
        f"sys.exit(main(['--model', {model!r}, '--tp', '4', '--json']))"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0 and json.loads(ended.stdout)["fits"]
