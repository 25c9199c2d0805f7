"""Folders: those that the launcher or the plugin refuses are errors here as well, and a whole checkpoint is not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.doctor.test_collect import doctor
from xpu_moe.demo.shape import Shape, quantization_config
from xpu_moe.demo.write import write
from xpu_moe.doctor import collect, judge
from xpu_moe.formats.claims import AUTO_ROUND, GPTQ, judge_int4
from xpu_moe.formats.quantization import UnsupportedCheckpoint
from xpu_moe.launch import model as launch_model
from xpu_moe.launch.errors import LaunchError
from xpu_moe.launch.plan import _facts_of_flags

PLAN = {"device": "cpu", "tp": 1, "dtype": "bfloat16"}
ROUND, PACKED = (quantization_config(Shape(quant=quant)) for quant in ("auto-round", "gptq"))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A whole demo checkpoint in three shards with an index."""
    folder = tmp_path_factory.mktemp("whole") / "demo"
    write(folder, Shape(shards=3))
    return folder


@pytest.fixture
def folder(checkpoint, tmp_path):
    """The checkpoint's files as links, to be changed by a test."""
    copy = tmp_path / "model"
    copy.mkdir()
    for file in checkpoint.iterdir():
        os.link(file, copy / file.name) if file.is_file() else None
    return copy


def rewrite(file: Path, content: str) -> None:
    file.unlink(missing_ok=True)
    file.write_text(content)


def config_of(folder: Path) -> dict:
    return json.loads((folder / "config.json").read_text())


def errors(folder: Path, plan=None, **more):
    facts = collect(model=folder, plan=PLAN if plan is None else plan, environ={}, root=folder.parent / "nowhere")
    facts["python"] = {"packages": {}}
    assert judge(json.loads(json.dumps(facts)), strict=True) == judge(facts, strict=True)
    return [f for f in judge(facts, strict=True) if f.severity == "error"]


def notes(folder: Path, plan):
    facts = collect(model=folder, plan=plan, environ={}, root=folder.parent / "nowhere")
    return [f for f in judge(facts, strict=True) if f.severity == "info"]


@pytest.mark.parametrize("quant", ["auto-round", "gptq", "fp8", "none"])
def test_a_whole_checkpoint_is_no_error(tmp_path, quant):
    for made in write(tmp_path / "demo", Shape(quant=quant)):
        assert errors(made) == []


def no_config(folder):
    (folder / "config.json").unlink()


def gguf_only(folder):
    for file in folder.iterdir():
        file.unlink()
    (folder / "MiniMax-Q4_K_M.gguf").write_bytes(b"GGUF")


def empty(folder):
    for file in folder.iterdir():
        file.unlink()


def pickled(folder):
    (folder / "pytorch_model.bin").write_bytes(b"")


def no_weights(folder):
    for file in [*folder.glob("*.safetensors"), *folder.glob("*.index.json")]:
        file.unlink()


def pipe(folder):
    (folder / "config.json").unlink()
    os.mkfifo(folder / "config.json")


def another_type(folder):
    rewrite(folder / "config.json", json.dumps({**config_of(folder), "model_type": "llama"}))


def empty_config(folder):
    rewrite(folder / "config.json", "{}")


@pytest.mark.parametrize(("make", "about", "words"), [
    (no_config, "model.index_error", "give the folder of a checkpoint"),
    (empty, "model.index_error", "give the folder of a checkpoint"),
    (pipe, "model.index_error", "not a regular file"),
    (gguf_only, "model.files", "GGUF"),
    (pickled, "model.files", "pytorch_model.bin"),
    (no_weights, "model.files", "no .safetensors"),
    (another_type, "model.config.model_type", "llama"),
    (empty_config, "model.config.model_type", "absent"),
])  # fmt: skip
def test_what_the_launcher_refuses_is_an_error_here(folder, make, about, words):
    launch_model.check(str(folder))
    make(folder)
    with pytest.raises(LaunchError):
        launch_model.check(str(folder))
    found = errors(folder)
    assert [f.about for f in found] == [about]
    assert words in " ".join((found[0].title, found[0].why, found[0].fix))
    assert "named file" not in found[0].fix


def test_a_pipe_for_a_config_does_not_hang(folder):
    pipe(folder)
    command = [sys.executable, "-m", "xpu_moe.doctor", "--model", str(folder)]
    assert subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == 2


def one_of_two(folder):
    no_weights(folder)
    tiny(folder / "model-00001-of-00002.safetensors")


def empty_map(folder):
    rewrite(folder / "model.safetensors.index.json", '{"weight_map": {}}')


def one_tiny_tensor(folder):
    no_weights(folder)
    tiny(folder / "model.safetensors")


def one_expert_less(folder):
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    lost = ".layers.1.block_sparse_moe.experts.3.w2."
    index["weight_map"] = {name: shard for name, shard in index["weight_map"].items() if lost not in name}
    rewrite(folder / "model.safetensors.index.json", json.dumps(index))


def tiny(file: Path) -> None:
    """A safetensors file of one 32-byte tensor."""
    header = json.dumps({"x": {"dtype": "F32", "shape": [8], "data_offsets": [0, 32]}}).encode()
    file.write_bytes(len(header).to_bytes(8, "little") + header + bytes(32))


@pytest.mark.parametrize(("make", "about", "words"), [
    (one_of_two, "model.shards_missing", "model-00002-of-00002.safetensors"),
    (empty_map, "model.index_error", "names no tensor"),
    (one_tiny_tensor, "model.tensor_names", "model.layers.0.self_attn.q_proj"),
    (one_expert_less, "model.tensor_names", "1 matrices"),
])  # fmt: skip
def test_a_checkpoint_that_is_not_all_there_is_an_error(folder, make, about, words):
    make(folder)
    found = errors(folder)
    assert [f.about for f in found] == [about] and words in found[0].why


def with_a_header(name, cut):
    def make(folder):
        no_weights(folder)
        header = json.dumps({name: {"dtype": "F32", "shape": [8], "data_offsets": [0, 32]}}).encode()
        (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(32 - cut))

    return make


@pytest.mark.parametrize(("make", "why", "fix"), [
    (with_a_header("a; b: c", 5), "model.safetensors: truncated, tensor 'a; b: c' ends 5 bytes after the file.",
     "download model.safetensors again"),
    (with_a_header("a", 5), "model.safetensors: truncated, tensor 'a' ends 5 bytes after the file.",
     "download model.safetensors again"),
    (empty_map, "model.safetensors.index.json: weight_map names no tensor.",
     "download model.safetensors.index.json again"),
    (no_config, "config.json: No such file or directory.", "give the folder of a checkpoint"),
    (pipe, "config.json: not a regular file.", "give the folder of a checkpoint"),
    (lambda folder: rewrite(folder / "config.json", "[]"), "config.json: got list, wanted a JSON object.",
     "download config.json again"),
])  # fmt: skip
def test_what_is_wrong_and_what_to_do_are_told_apart(folder, make, why, fix):
    make(folder)
    (found,) = [f for f in errors(folder) if f.about == "model.index_error"]
    assert (found.why, found.fix) == (f"{folder}/{why}", fix)


SIZE = "wanted a whole number between 1 and 2147483647"
NO_NUMBERS = [
    # field, value, what is said of it
    ("num_key_value_heads", "8", f'got "8", {SIZE}'), ("num_key_value_heads", 8.0, f"got 8.0, {SIZE}"),
    ("num_key_value_heads", -8, f"got -8, {SIZE}"), ("num_key_value_heads", 0, f"got 0, {SIZE}"),
    ("num_key_value_heads", None, f"got null, {SIZE}"), ("num_key_value_heads", True, f"got true, {SIZE}"),
    ("num_key_value_heads", [8], f"got list, {SIZE}"), ("hidden_size", "", f'got "", {SIZE}'),
    ("num_hidden_layers", 2.0, f"got 2.0, {SIZE}"), ("num_local_experts", 0, f"got 0, {SIZE}"),
    ("num_experts_per_tok", None, f"got null, {SIZE}"), ("head_dim", None, f"got null, {SIZE}"),
    ("max_position_embeddings", "196608", f'got "196608", {SIZE}'), ("vocab_size", 10**12, f"got {10**12}, {SIZE}"),
    ("rms_norm_eps", "1e-6", 'got "1e-6", wanted a number above 0 and below 1'),
    ("rms_norm_eps", None, "got null, wanted a number above 0 and below 1"),
    ("rope_theta", "5000000", 'got "5000000", wanted a number above 0'),
    ("rotary_dim", -64, "got -64, wanted a number above 0"),
]  # fmt: skip


@pytest.mark.parametrize(("field", "value", "says"), NO_NUMBERS)
def test_a_number_of_config_that_is_none_is_an_error_by_its_name(folder, field, value, says):
    rewrite(folder / "config.json", json.dumps({**config_of(folder), field: value}))
    (found,) = [f for f in errors(folder) if f.about.startswith("model.config")]
    assert (found.about, found.why) == (f"model.config.{field}", f"{field}: {says}.")


def test_every_number_that_is_none_is_named_and_those_that_are_not_there(folder):
    config = {**config_of(folder), "num_attention_heads": "4", "hidden_size": 0}
    del config["num_local_experts"]
    rewrite(folder / "config.json", json.dumps(config))
    found = errors(folder)
    assert {"model.config.num_attention_heads", "model.config.hidden_size"} <= {f.about for f in found}
    facts = collect(model=folder, plan=PLAN, environ={}, root=folder.parent / "nowhere")
    (lost,) = [f for f in judge(facts, strict=True) if f.code == "config.missing"]
    assert lost.severity == "warn" and "num_local_experts." in lost.why and "hidden_size" not in lost.why


@pytest.mark.parametrize(
    "more", [{"rope_theta": None}, {"rotary_dim": None}, {"rms_norm_eps": 1e-5}, {"sliding_window": None}]
)
def test_what_a_config_may_leave_open_is_silent(folder, more):
    rewrite(folder / "config.json", json.dumps({**config_of(folder), **more}))
    assert errors(folder) == []


CHANGES = [{"sym": False}, {"bits": 8}, {"group_size": -1}, {"group_size": 256}, {"desc_act": True}, {"bits": None},
           {"packing_format": "auto_round:auto_awq"}, {"data_type": "mx_fp"}, {"group_size": 64}, {}]  # fmt: skip


@pytest.mark.parametrize("device", ["cpu", "xpu", "cuda"])
@pytest.mark.parametrize("base", [ROUND, PACKED], ids=["auto-round", "gptq"])
@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_the_doctor_says_of_a_quantisation_what_the_plugin_says(folder, device, base, change):
    quant = {**base, **change}
    rewrite(folder / "config.json", json.dumps({**config_of(folder), "quantization_config": quant}))
    own = AUTO_ROUND if base is ROUND else GPTQ
    plan = {"device": device, "tp": 1}
    try:
        claim = judge_int4(own, quant, "minimax_m2", None, device)
    except UnsupportedCheckpoint as error:
        found = [f for f in errors(folder, plan) if f.about == "model.quantization_config"]
        assert len(found) == 1 and found[0].why.startswith(str(error))
        return
    assert [f for f in errors(folder, plan) if f.about == "model.quantization_config"] == []
    left = [f for f in notes(folder, plan) if f.code == "claims.left"]
    assert [claim.reason in f.why for f in left] == ([True] if claim.reason else [])


def test_overrides_of_experts_are_asked_too(folder):
    quant = {**ROUND, "extra_config": {"model.layers.1.block_sparse_moe.experts.0": {"bits": 8}}}
    rewrite(folder / "config.json", json.dumps({**config_of(folder), "quantization_config": quant}))
    for device in ("cpu", "xpu", "cuda"):
        (found,) = errors(folder, {"device": device, "tp": 1})
        assert found.code == "claims.refused" and "experts" in found.why


@pytest.mark.parametrize("base", [ROUND, PACKED], ids=["auto-round", "gptq"])
def test_a_pattern_whose_matching_does_not_end_is_an_error_and_no_hang(folder, base):
    pattern = r"^(\w+\.?)+!$"
    more = {"extra_config": {pattern: {"bits": 16}}} if base is ROUND else {"dynamic": {f"-:{pattern}": {}}}
    rewrite(folder / "config.json", json.dumps({**config_of(folder), "quantization_config": {**base, **more}}))
    command = [sys.executable, "-m", "xpu_moe.doctor", "--model", str(folder), "--json"]
    found = json.loads(subprocess.run(command, capture_output=True, timeout=60, check=False).stdout)["findings"]
    (endless,) = [f for f in found if f["about"] == "model.quantization_config" and f["severity"] == "error"]
    assert endless["code"] == "claims.endless" and repr(pattern) in endless["why"]


def test_without_a_device_it_is_a_note(folder):
    quant = {**ROUND, "sym": False}
    rewrite(folder / "config.json", json.dumps({**config_of(folder), "quantization_config": quant}))
    assert errors(folder, {}) == []


@pytest.mark.parametrize("flags", [("--quantization", "inc"), ("--quantization=inc",), ("-q", "inc")])
def test_a_method_that_the_user_names_is_an_opt_out(folder, flags):
    plan = {**PLAN, **_facts_of_flags(flags)}
    rewrite(folder / "config.json", json.dumps({**config_of(folder), "quantization_config": {**ROUND, "sym": False}}))
    assert errors(folder, plan) == []
    assert any(f.code == "claims.left" and "--quantization inc" in f.why for f in notes(folder, plan))


@pytest.mark.parametrize("quant", [
    {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True},
    {"quant_method": "compressed-tensors", "format": "pack-quantized",
     "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int", "group_size": 128, "symmetric": True}}}},
], ids=["awq", "compressed-tensors"])  # fmt: skip
def test_what_is_left_to_vllm_is_a_note(folder, quant):
    rewrite(folder / "config.json", json.dumps({**config_of(folder), "quantization_config": quant}))
    (note,) = [f for f in notes(folder, {"device": "cuda", "tp": 1}) if f.code == "claims.left"]
    assert "plugin takes no" in note.why


@pytest.mark.parametrize("more", [("--model", "/nonexistent"), ("--plan", "/nonexistent"), ("--deep",)])
def test_recorded_facts_exclude_what_would_be_ignored(tmp_path, more):
    file = tmp_path / "facts.json"
    file.write_text('{"schema": 1}')
    ended = doctor("--facts", file, *more)
    assert ended.returncode == 64 and "exclude each other" in ended.stderr and more[0] in ended.stderr


@pytest.mark.parametrize(("name", "value", "severity", "words"), [
    ("XPU_MOE_STALL_LIMIT", "abc", "warn", "whole number"),
    ("XPU_MOE_STALL_LIMIT", "-3", "warn", "1 or more"),
    ("XPU_MOE_CHECK", "perhaps", "warn", "1 or 0"),
    ("XPU_MOE_STAL_LIMIT", "600", "warn", "Did you mean XPU_MOE_STALL_LIMIT?"),
    ("XPU_MOE_SOMETHING_ELSE", "1", "warn", "No version"),
])  # fmt: skip
def test_our_own_variables_are_read_before_the_start(tmp_path, name, value, severity, words):
    facts = collect(environ={name: value}, root=tmp_path)
    assert value == "abc" or value == facts["env"][name] or facts["env"][name] == "***"
    (found,) = [f for f in judge(facts, strict=True) if f.about == f"env.{name}"]
    assert found.severity == severity and words in found.why


@pytest.mark.parametrize("value", ["1", "900", ""])
def test_a_good_value_of_ours_is_silent(tmp_path, value):
    facts = collect(environ={"XPU_MOE_STALL_LIMIT": value}, root=tmp_path)
    assert not [f for f in judge(facts, strict=True) if f.about.startswith("env.XPU_MOE")]


@pytest.mark.parametrize(
    ("change", "about", "says"),
    [({"hidden_size": 512}, "model.tensor_names", "embed_tokens.weight (in model-00001-of-00003.safetensors): got ["),
     ({"num_hidden_layers": 1}, "model.tensor_names", "config.json has 1 layers"),
     ({"num_experts_per_tok": 99}, "model.config.num_experts_per_tok", "top-k")],
)  # fmt: skip
def test_weights_of_another_size_than_config_means_are_an_error(folder, change, about, says):
    rewrite(folder / "config.json", json.dumps({**config_of(folder), **change}))
    assert [f.about for f in errors(folder) if says in f.why] == [about]


def test_a_shard_with_bytes_behind_its_tensors_is_an_error(folder):
    file = folder / "model-00002-of-00003.safetensors"
    content = file.read_bytes()
    file.unlink()
    file.write_bytes(content + b"junk")
    (found,) = errors(folder)
    assert "4 bytes longer than its header says" in found.why and "again" in found.fix
