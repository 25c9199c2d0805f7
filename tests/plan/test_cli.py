"""`python -m xpu_moe.plan`, as users type it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.plan.shapes_of_models import MINIMAX, MINIMAX_FP8, MINIMAX_INT4, QWEN3_8B
from tests.plan.test_checkpoint import SMALL, TENSORS, TOTAL, shard
from xpu_moe.plan.__main__ import main
from xpu_moe.plan.profiles import PROFILES
from xpu_moe.plan.sizes import gib


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


@pytest.mark.parametrize("card", ["b60", "h200"])
@pytest.mark.parametrize("tp", ["8", "16", "48"])
def test_a_cut_that_cannot_be_served_is_no_plan(capsys, model, card, tp):
    """1536 columns of an expert in slices that hold no group of 128."""
    assert main(["--model", model, "--tp", tp, "--card", card]) == 2
    said = capsys.readouterr().err
    assert "columns of an expert are no multiple" in said and said.endswith("possible: 1, 2, 4\n")


def test_whole_experts_and_plain_weights_can_be_cut_further(capsys, model, tmp_path):
    assert main(["--model", model, "--tp", "8", "--card", "h200", "--enable-expert-parallel"]) == 0
    (tmp_path / "config.json").write_text(json.dumps(MINIMAX))
    assert main(["--model", model, "--tp", "8", "--card", "h200"]) == 0
    assert not capsys.readouterr().err


def test_a_cut_that_a_newer_vllm_makes_is_told(capsys, model, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(MINIMAX_FP8))
    code, found = answer(capsys, "--model", model, "--tp", "8", "--card", "h200")
    assert code == 0 and "0.32" in found["notes"][0]
    assert main(["--model", model, "--tp", "16", "--card", "h200"]) == 2
    assert "possible: 1, 2, 4, 8" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "word"), [("model", "32 bytes"), ("model-00001-of-00009", "-00002-of-00009.safetensors and 7 more")]
)
def test_an_incomplete_download_is_planned_from_config(capsys, model, tmp_path, name, word):
    arguments = ("--model", model, "--tp", "4", "--card", "b70", "--max-model-len", "16384")
    _, whole = answer(capsys, *arguments)
    shard(tmp_path / f"{name}.safetensors", {"a": ("F32", (8,))})
    code, found = answer(capsys, *arguments)
    assert code == 0 and word in found.pop("notes")[0] and whole.pop("notes") == []
    assert found == whole


def test_what_the_index_tells_is_in_the_notes(capsys, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(SMALL))
    names = list(TENSORS)
    for number, part in enumerate((names[:6], names[6:]), 1):
        shard(tmp_path / f"model-0000{number}-of-00002.safetensors", {name: TENSORS[name] for name in part})
    arguments = ("--model", str(tmp_path), "--card", "b70", "--max-model-len", "2048")
    _, found = answer(capsys, *arguments)
    assert found["weights_source"] == "headers" and "half of the bytes that config.json means" in found["notes"][0]
    files = {name: f"model-0000{1 + (name in names[6:])}-of-00002.safetensors" for name in names}
    for more, source in ((0, "headers"), (1, "config")):
        index = {"metadata": {"total_size": TOTAL + more}, "weight_map": files}
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
        _, found = answer(capsys, *arguments)
        assert found["weights_source"] == source
        lost = f"the weights are {TOTAL:,} of the {TOTAL + 1:,} bytes that the index tells (total_size)"
        assert found["notes"] == ([f"{lost}; sizes are computed from config.json"] if more else [])


def test_roofline_with_a_probes_file(capsys, model, tmp_path):
    probe = tmp_path / "probe.json"
    probe.write_text(json.dumps({"schema": 1, "rows": [{"bytes": 6144, "p50_us": 15.0, "ok": True}]}))
    code, found = answer(capsys, "--model", model, "--tp", "4", "--card", "b70", "--roofline", "--probe", str(probe))
    assert code == 0 and found["roofline"]["latency_source"] == "probe" and found["notes"] == []
    assert found["roofline"]["tok_per_s"] == pytest.approx(166, rel=0.01)


def test_a_probe_of_another_machine_is_noted(capsys, model, tmp_path):
    probe = tmp_path / "probe.json"
    rows = [{"bytes": 6144, "p50_us": 12.0}, {"bytes": 6144, "p50_us": 1e300}]
    probe.write_text(json.dumps({"rows": rows, "backend": "nccl", "device": "cuda", "world": 2, "verdict": "wrong"}))
    code, found = answer(capsys, "--model", model, "--tp", "4", "--card", "b70", "--roofline", "--probe", str(probe))
    assert code == 0 and found["roofline"]["latency_source"] == "probe: nccl on 2 cuda ranks"
    assert [note.split(",")[0] for note in found["notes"]] == [
        "--probe: its device is 'cuda'", "--probe: its world is '2'", "--probe: its verdict is 'wrong'"
    ]  # fmt: skip
    assert main(["--model", model, "--tp", "4", "--probe", str(probe)]) == 2
    assert "wanted --roofline with it" in capsys.readouterr().err


@pytest.mark.parametrize("name", list(PROFILES))
def test_profiles_by_name(capsys, model, name):
    code, found = answer(capsys, "--model", model, "--profile", name)
    assert code == 0 and found["profile"] == name and found["proved"] is PROFILES[name].proved


def test_list_of_profiles(capsys):
    code, found = answer(capsys, "--profiles")
    assert code == 0 and {p["profile"] for p in found["profiles"]} == set(PROFILES)


def test_proved_is_what_a_recorded_run_shows(capsys):
    """One launch's own settings were run and published; H200 and B60 have no run of a server, others needed patches."""
    _, found = answer(capsys, "--profiles")
    assert [p["profile"] for p in found["profiles"] if p["proved"]] == ["b70-tp4-latency"]
    assert all(p["evidence"] and p["proved"] <= bool(p["points"]) for p in found["profiles"])
    for profile in PROFILES.values():
        said = any("patch" in p.conditions or "with graphs" in p.conditions for p in profile.points)
        assert said == any(p.patched for p in profile.points)
    assert main(["--profiles"]) == 0
    said = capsys.readouterr().out
    assert said.count("not proved: ") == len(PROFILES) - 1 and said.count("probe allreduce") == 1


def test_text_and_picture(capsys, model, tmp_path):
    code = main(["--model", model, "--profile", "b70-tp4-graph", "--roofline", "--plot", str(tmp_path / "p.png")])
    out = capsys.readouterr().out
    assert code == 0 and "not proved: others ran it with a patched vLLM" in out and "187 all-reduces" in out
    assert (tmp_path / "p.png").stat().st_size > 1000


@pytest.mark.parametrize("name", ["pipe.png", "picture", "gone/p.png", f"{'p' * 300}.png"])
def test_a_picture_that_cannot_be_written_is_refused_at_once(capsys, model, tmp_path, name):
    os.mkfifo(tmp_path / "pipe.png")
    assert main(["--model", model, "--plot", str(tmp_path / name), "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["cannot"].startswith("--plot: got ")


@pytest.mark.parametrize(
    "arguments",
    [["--tp", "5"], ["--tp", "3"], ["--tp", "0"], ["--kv-cache-memory-bytes", "4GiB"], ["--block-size", "-1"],
     ["--max-model-len", "-5"], ["--max-model-len", "0"], ["--pp", "63"],
     ["--gpu-memory-utilization", "1.5"], ["--roofline", "--probe", "/nonexistent"], ["--roofline", "--batch", "0"],
     ["--card", "cpu", "--roofline"], ["--kv-cache-dtype", "bogus"], ["--kv-cache-memory-bytes", "nan"],
     ["--kv-cache-memory-bytes", "9999999T"], ["--block-size", "99999999"], ["--max-num-seqs", "9" * 30],
     ["--roofline", "--context", "9" * 30]],
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


@pytest.mark.parametrize("value", ["3072", 3072.0, 10**30, 0, True, None, [3072]])
def test_a_size_of_another_type_is_told(capsys, tmp_path, value):
    (tmp_path / "config.json").write_text(json.dumps({**MINIMAX_INT4, "hidden_size": value}))
    assert main(["--model", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert "hidden_size: got" in said and "missing" not in said


@pytest.mark.parametrize("name", ["num_key_value_heads", "num_local_experts", "vocab_size", "intermediate_size"])
def test_a_size_with_a_default_is_not_replaced_where_it_is_no_size(capsys, tmp_path, name):
    for value in ("8", 8.0, -8):
        (tmp_path / "config.json").write_text(json.dumps({**MINIMAX_INT4, name: value}))
        assert main(["--model", str(tmp_path)]) == 2
        assert f"{name}: got {json.dumps(value)}, wanted" in capsys.readouterr().err


def test_experts_of_unknown_width_are_told(capsys, tmp_path):
    config = {**MINIMAX, "model_type": "qwen3_moe"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert main(["--model", str(tmp_path)]) == 2
    assert "moe_intermediate_size is missing" in capsys.readouterr().err


def test_a_pipe_for_config_is_refused_at_once(capsys, tmp_path):
    os.mkfifo(tmp_path / "config.json")
    assert main(["--model", str(tmp_path)]) == 2
    assert "config.json: not a regular file" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--model", "--probe"])
def test_a_pipe_or_a_device_is_refused_at_once_by_the_arguments_name(capsys, model, tmp_path, option):
    os.mkfifo(tmp_path / "pipe")
    given = [] if option == "--model" else ["--model", model, "--roofline"]
    for file, kind in ((tmp_path / "pipe", "a pipe"), (Path("/dev/zero"), "a device"), (tmp_path, "a folder")):
        if (option, kind) == ("--model", "a folder"):
            continue
        assert main([*given, option, str(file), "--json"]) == 2
        out, err = capsys.readouterr()
        assert f"{option}: got {str(file)!r}, which is {kind}, wanted a " in err
        assert json.loads(out)["cannot"] in err


@pytest.mark.parametrize(("content", "says"), [
    (None, ": No such file or directory; wanted a file with the JSON object"),
    ("{", ", which is no JSON; wanted the JSON object"),
    ("[" * 10**5, ", which is no JSON; wanted the JSON object"),
    ("9" * 10**5, ", which is no JSON; wanted the JSON object"),
])  # fmt: skip
def test_a_probes_file_that_is_none_is_told(capsys, model, tmp_path, content, says):
    file = tmp_path / "probe.json"
    if content is not None:
        file.write_text(content)
    assert main(["--model", model, "--roofline", "--probe", str(file)]) == 2
    assert f"--probe: got {str(file)!r}{says}" in capsys.readouterr().err


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


def test_small_sizes_are_not_printed_as_nothing(capsys, model):
    main(["--model", model, "--tp", "4", "--kv-cache-memory-bytes", "1K"])
    assert "does not fit: 1 KiB of KV do not hold one block of tokens" in capsys.readouterr().out
    assert [gib(count) for count in (5 << 20, 600, 3, 7 << 30)] == ["5.00 MiB", "1 KiB", "3 bytes", "7.00 GiB"]


def test_a_length_beyond_the_models_positions_is_noted(capsys, model):
    code, found = answer(capsys, "--model", model, "--tp", "4", "--max-model-len", "300000")
    assert code == 1 and "beyond the model's 196608 positions" in found["notes"][-1]
