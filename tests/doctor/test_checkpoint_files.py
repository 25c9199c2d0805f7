"""Checkpoints of which one thing is damaged: the doctor says which, and is silent of real ones."""

from __future__ import annotations

import json
import os
import shlex

import pytest

from tests.doctor.test_folders import PLAN, checkpoint, config_of, folder, no_weights, rewrite
from xpu_moe.demo.shape import Shape, quantization_config
from xpu_moe.demo.write import write
from xpu_moe.doctor import collect, judge
from xpu_moe.doctor.rules.quantization import KNOWN

__all__ = ["checkpoint", "folder"]  # fixtures

LOST = "model.layers.0.block_sparse_moe.experts.0.w2.qweight"
OTHER = LOST.replace("w2", "w1")


def loud(folder, plan=None):
    facts = collect(model=folder, plan=plan or PLAN, environ={}, root=folder.parent / "nowhere")
    facts["python"] = {"packages": {}}
    return [f for f in judge(facts, strict=True) if f.severity != "info"]


def shard_of(folder, name=LOST):
    return json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"][name]


def reheaded(folder, change):
    """The shard of LOST with another header; its name."""
    file = folder / shard_of(folder)
    content = file.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.dumps(change(json.loads(content[8 : 8 + length]))).encode()
    file.unlink()
    file.write_bytes(len(header).to_bytes(8, "little") + header + content[8 + length :])
    return file.name


def test_a_tensor_of_the_index_that_no_file_holds_is_an_error(folder):
    name = reheaded(folder, lambda header: {f"{key}X" if key == LOST else key: value for key, value in header.items()})
    (found,) = loud(folder)
    assert (found.code, found.severity, found.title) == ("checkpoint.lost", "error",
                                                         "1 tensors of the index are in no file")  # fmt: skip
    assert LOST in found.why and f"{folder}/{name}" in found.why and name in found.fix


def test_a_tensor_in_another_file_than_the_index_says_is_not_lost(folder):
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    others = sorted({*index["weight_map"].values()} - {shard_of(folder)})
    index["weight_map"][LOST] = others[0]
    rewrite(folder / "model.safetensors.index.json", json.dumps(index))
    assert loud(folder) == []


@pytest.mark.parametrize(("entry", "says"), [
    ([1], "got list, wanted an object"),
    ({"dtype": "Q9"}, "dtype 'Q9' is none that safetensors knows"),
    ({"data_offsets": [-5, 10]}, "data_offsets [-5, 10]"),
    ({"shape": [1, 1]}, "I32 of [1, 1] is another size"),
    (None, f"within tensor '{OTHER}'"),
])  # fmt: skip
def test_a_header_that_safetensors_refuses_is_an_error_that_names_file_and_tensor(folder, entry, says):
    def change(header):
        own = {"data_offsets": header[OTHER]["data_offsets"]} if entry is None else entry
        return {**header, LOST: own if isinstance(own, list) else {**header[LOST], **own}}

    name = reheaded(folder, change)
    (found,) = [f for f in loud(folder) if f.code != "checkpoint.shapes"]  # a wrong shape is both
    assert (found.code, found.severity, found.about) == ("checkpoint.header", "error", "model.header_error")
    assert f"{folder}/{name}: tensor '{LOST}'" in found.why and says in found.why
    assert found.title.startswith(name) and name in found.fix


INT4, PACKED = (quantization_config(Shape(quant=quant)) for quant in ("auto-round", "gptq"))
FP8 = {"quant_method": "fp8", "fmt": "float8_e4m3fn", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}


def requantised(folder, quant):
    rewrite(folder / "config.json", json.dumps({**config_of(folder), "quantization_config": quant}))
    return [f for f in loud(folder, {"device": "cuda", "tp": 1}) if f.code.startswith("quantization.")]


@pytest.mark.parametrize(("quant", "severity", "says"), [
    ({"quant_method": "foo"}, "warn", "quant_method 'foo' is not known"),
    ({"bits": 4}, "error", "has bits, and no quant_method"),
    ({"quant_method": ["gptq"]}, "error", "quant_method: got ['gptq'], wanted the name"),
    ({"quant_method": ""}, "error", "quant_method: got ''"),
    ([1], "error", "got list, wanted an object"), ("gptq", "error", "got str, wanted an object"),
    ({**FP8, "weight_block_size": [0, 0]}, "error", "weight_block_size: got [0, 0]"),
    ({**FP8, "weight_block_size": "x"}, "error", "weight_block_size: got 'x'"),
    ({**FP8, "activation_scheme": "x"}, "error", "activation_scheme: got 'x'"),
    ({**FP8, "activation_scheme": "static"}, "error", "'dynamic' alone"),
    (FP8, "error", "config.json says fp8, whose experts have no model.layers.0.block_sparse_moe.experts.0.w1.qweight"),
])  # fmt: skip
def test_a_quantisation_that_is_none_or_another_ones_is_said(folder, quant, severity, says):
    (found,) = requantised(folder, quant)
    assert found.severity == severity and says in f"{found.title}: {found.why}"


@pytest.mark.parametrize("quant", [
    INT4, PACKED, None, {},
    {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "_load_in_4bit": True},
    {"load_in_8bit": True, "llm_int8_threshold": 6.0},
    {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {
        "group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int", "group_size": 128}}}},
    {"quant_algo": "NVFP4", "producer": {"name": "modelopt"}, "quant_method": "modelopt"},
    {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"},
    *({"quant_method": name} for name in ("AWQ", "GPTQ", "mxfp4", "quark", "torchao", "modelopt_fp4")),
])  # fmt: skip
def test_real_quantisations_are_silent(folder, quant):
    assert requantised(folder, quant) == []


@pytest.mark.parametrize("method", ["gptq", "awq", "auto-round"])
def test_fp8_weights_under_an_integer_config_are_an_error(tmp_path, method):
    made, _ = write(tmp_path / "demo", Shape(quant="fp8"))
    (found,) = requantised(made, {"quant_method": method, "bits": 4, "group_size": 128, "sym": True})
    assert found.code == "quantization.contradicted" and "weight_scale_inv" in found.why


@pytest.mark.slow
def test_every_method_of_the_installed_vllm_is_known():
    methods = pytest.importorskip("vllm.model_executor.layers.quantization").QUANTIZATION_METHODS
    ours = {name for name in methods if name.startswith("xpu_moe_")}
    assert {name for name in methods if name not in ours} <= {*KNOWN}


@pytest.mark.parametrize(("name", "content", "says"), [
    ("tokenizer.json", "", "empty"), ("tokenizer.json", "{", "no JSON"), ("tokenizer.json", "{}", "holds no model"),
    ("tokenizer.json", "[]", "got list"), ("tokenizer_config.json", "", "empty"),
    ("tokenizer.json", b"\xff", "no JSON"),
])  # fmt: skip
def test_a_damaged_tokenizer_is_an_error_by_its_path(folder, name, content, says):
    (folder / name).unlink()
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    (found,) = loud(folder)
    assert (found.code, found.severity) == ("tokenizer.damaged", "error")
    assert f"{folder}/{name}: " in found.why and says in found.why and found.fix == f"download {name} again"


def test_a_pipe_for_a_tokenizer_does_not_hang(folder):
    (folder / "tokenizer.json").unlink()
    os.mkfifo(folder / "tokenizer.json")
    assert [(f.code, "not a regular file" in f.why) for f in loud(folder)] == [("tokenizer.damaged", True)]


def test_a_folder_without_a_tokenizer_is_a_warning(folder):
    (folder / "tokenizer.json").unlink()
    assert [(f.code, f.severity) for f in loud(folder)] == [("tokenizer.missing", "warn")]


@pytest.mark.parametrize("names", [("tokenizer.json",), ("tokenizer.model",), ("vocab.json", "merges.txt")])
def test_a_tokenizer_of_any_kind_is_silent(folder, names):
    whole = (folder / "tokenizer.json").read_text()
    for file in folder.glob("tokenizer*"):
        file.unlink()
    for name in names:
        (folder / name).write_text(whole if name == "tokenizer.json" else "{}")
    (folder / "tokenizer_notes.json").write_text("")  # an extra file
    assert loud(folder) == []


@pytest.mark.parametrize(("change", "severity", "says"), [
    ({"architectures": []}, "error", "architectures: got an empty list"),
    ({"architectures": None}, "error", "architectures: got null"),
    ({"architectures": ...}, "error", "architectures: not there"),
    ({"architectures": "MiniMaxM2ForCausalLM"}, "error", "architectures: got \"MiniMaxM2ForCausalLM\""),
    ({"architectures": ["LlamaForCausalLM"]}, "warn", "architectures: got LlamaForCausalLM"),
    ({"attn_type_list": "x"}, "error", "attn_type_list: got \"x\""),
    ({"attn_type_list": [1]}, "warn", "attn_type_list: has 1 entries for 2 layers"),
])  # fmt: skip
def test_a_config_without_its_class_or_with_odd_layers_is_said(folder, change, severity, says):
    config = {key: value for key, value in {**config_of(folder), **change}.items() if value is not ...}
    rewrite(folder / "config.json", json.dumps(config))
    (found,) = loud(folder)
    assert found.severity == severity and says in found.why


@pytest.mark.parametrize("change", [{"attn_type_list": None}, {"attn_type_list": ...}, {"attn_type_list": [1, 1, 1]}])
def test_a_config_may_lack_the_kinds_of_its_layers(folder, change):
    config = {key: value for key, value in {**config_of(folder), **change}.items() if value is not ...}
    rewrite(folder / "config.json", json.dumps(config))
    assert loud(folder) == []


@pytest.mark.parametrize("name", ["config.json", "model.safetensors.index.json", "model-00001-of-00002.safetensors"])
def test_a_file_that_may_not_be_read_is_no_damaged_one(name):
    model = {"index_error": f"{name}: Permission denied", "index_advice": f"download {name} again",
             "folder": "/models/my m", "files": []}  # fmt: skip
    (found,) = [f for f in judge({"model": model}, strict=True) if f.about == "model.index_error"]
    path = f"/models/my m/{name}"
    assert found.why == f"{path}: Permission denied."
    assert found.fix.startswith(f"chmod a+r {shlex.quote(path)} ") and "chown" in found.fix


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
@pytest.mark.parametrize("name", ["config.json", "model.safetensors.index.json", "tokenizer.json"])
def test_modes_that_forbid_reading_are_met_as_such(folder, name):
    content = (folder / name).read_bytes()
    (folder / name).unlink()
    (folder / name).write_bytes(content)
    (folder / name).chmod(0)
    assert any(f"chmod a+r {folder}/{name}" in found.fix for found in loud(folder))


def test_a_file_without_an_index_is_examined_too(folder):
    no_weights(folder)
    header = json.dumps({"x": {"dtype": "Q9", "shape": [8], "data_offsets": [0, 32]}}).encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(32))
    assert any("tensor 'x': dtype 'Q9'" in found.why for found in loud(folder))
