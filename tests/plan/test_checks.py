"""Config files that contradict themselves: no plan, an error that names file, key, got and wanted."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest

from tests.plan.shapes_of_models import DEEPSEEK_V3, FP8, INT4, MINIMAX, MINIMAX_FP8, MINIMAX_INT4, QWEN3_8B, QWEN3_30B
from tests.plan.test_checkpoint import SMALL, TENSORS, TOTAL, indexed
from xpu_moe.demo.__main__ import main as demo
from xpu_moe.plan.__main__ import main
from xpu_moe.plan.checkpoint import BadCheckpoint, read_config
from xpu_moe.plan.checks import check
from xpu_moe.plan.quantization import quant_of

LONG = int("9" * 400)


def refused(capsys, folder, *more):
    """What the planner says where it has no plan."""
    assert main(["--model", str(folder), "--json", *more]) == 2
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert found["ok"] is False and found["cannot"] in err and len(err.splitlines()) == 1
    return found["cannot"]


def written(folder, config):
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(("key", "value", "got", "wanted"), [
    ("num_local_experts", 0, "0", "1 and 2147483647: num_experts_per_tok is 8"),
    ("num_local_experts", None, "null", "1 and 2147483647: num_experts_per_tok is 8"),
    ("num_local_experts", {"a": 1}, "dict", "0 and 2147483647"),
    ("num_experts", 8, "8", "256, as num_local_experts has"),
    ("num_experts_per_tok", 257, "257", "1 and the 256 of num_local_experts"),
    ("num_experts_per_tok", 0, "0", "1 and the 256 of num_local_experts"),
    ("num_experts_per_tok", [8], "list", "0 and 2147483647"),
    ("max_position_embeddings", "1k", '"1k"', "1 and 2147483647"),
    ("max_position_embeddings", 0, "0", "1 and 2147483647"),
    ("max_position_embeddings", LONG, "a number of 1329 bits", "1 and 2147483647"),
    ("head_dim", 0, "0", "1 and 2147483647"), ("head_dim", None, "null", "1 and 2147483647"),
    ("num_key_value_heads", 0, "0", "1 and 2147483647"),
    ("num_key_value_heads", 5, "5", "a divisor of the 48 of num_attention_heads"),
    ("vocab_size", 0, "0", "1 and 2147483647"), ("intermediate_size", 0, "0", "1 and 2147483647"),
    ("first_k_dense_replace", 63, "63", "at most the 62 of num_hidden_layers"),
    ("n_shared_experts", -1, "-1", "0 and 2147483647"),
    ("torch_dtype", "bf16", '"bf16"', "one of float32"), ("torch_dtype", 2, "2", "one of float32"),
    ("tie_word_embeddings", "no", '"no"', "true or false"),
    ("attn_type_list", [1], "a list of 1", "a list of the 62 of num_hidden_layers"),
    ("attn_type_list", [0] * 62, "no layer of attention", "one at least"),
    ("text_config", [1], "list", "an object"),
    ("quantization_config", [4], "list", "an object with a quant_method"),
    ("quantization_config", "gptq", '"gptq"', "an object with a quant_method"),
    ("quantization_config", False, "false", "an object with a quant_method"),
])  # fmt: skip
def test_a_value_that_no_plan_can_be_made_of_is_told(capsys, tmp_path, key, value, got, wanted):
    says = refused(capsys, written(tmp_path, {**MINIMAX_INT4, key: value}))
    assert says.startswith(f"{tmp_path}/config.json: {key}: got {got}, wanted ") and wanted in says


@pytest.mark.parametrize("key", ["num_local_experts", "num_experts_per_tok", "num_key_value_heads", "head_dim",
                                 "vocab_size", "intermediate_size"])  # fmt: skip
def test_what_is_not_there_is_not_replaced(capsys, tmp_path, key):
    config = {name: value for name, value in MINIMAX_INT4.items() if name != key}
    assert refused(capsys, written(tmp_path, config)).startswith(f"{tmp_path}/config.json: {key} is missing; ")


def test_a_config_of_nothing_is_told(capsys, tmp_path):
    assert "hidden_size is missing" in refused(capsys, written(tmp_path, {"a": 1}))


def test_other_models_lack_what_they_cannot_be_planned_without(capsys, tmp_path):
    apart = {"moe_intermediate_size": None, "model_type": "mixtral"}
    for config, says in (
        (
            {**QWEN3_8B, "head_dim": None, "hidden_size": 4100},
            "head_dim: got null, wanted a number, as hidden_size 4100",
        ),
        ({**DEEPSEEK_V3, "qk_rope_head_dim": None}, "qk_rope_head_dim: got null, wanted"),
        ({**QWEN3_8B, "num_experts_per_tok": 8}, "num_local_experts is missing"),
        ({**QWEN3_8B, "moe_intermediate_size": 768}, "num_local_experts is missing"),
        ({**QWEN3_30B, **apart, "intermediate_size": None}, "intermediate_size: got null, wanted"),
    ):
        assert says in refused(capsys, written(tmp_path, config))


def test_stages_want_more_than_headers(capsys, tmp_path):
    indexed(tmp_path, TENSORS, total_size=TOTAL)
    layers = {"num_hidden_layers": 2, "quantization_config": {"quant_method": "secret"}}
    assert "the weights hold 1 of 2 layers" in refused(capsys, written(tmp_path, {**SMALL, **layers}))
    tensors = {**TENSORS, **{n.replace("layers.0", "layers.1"): kind for n, kind in TENSORS.items()}}
    indexed(tmp_path, tensors)
    says = refused(capsys, written(tmp_path, {**SMALL, **layers}), "--pp", "2")
    assert says.endswith(": --pp wants those of each layer")


@pytest.mark.parametrize("config", [
    MINIMAX, MINIMAX_INT4, MINIMAX_FP8, QWEN3_8B, QWEN3_30B, DEEPSEEK_V3,
    {**QWEN3_8B, "num_experts": 0, "num_experts_per_tok": 0}, {**QWEN3_8B, "head_dim": None, "num_experts": None},
    {**QWEN3_8B, "num_key_value_heads": None, "quantization_config": None, "sliding_window": None},
    {"model_type": "outer", "text_config": MINIMAX_INT4},
    {**MINIMAX, "attn_type_list": [1] * 62, "n_shared_experts": 0},
    {**MINIMAX, "quantization_config": {**INT4, "group_size": -1}},
    {**MINIMAX, "quantization_config": {"quant_method": "gptq", "bits": 8, "group_size": 32, "desc_act": False}},
    {**MINIMAX, "quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}},
    {**MINIMAX, "quantization_config": {"quant_method": "compressed-tensors", "config_groups": {
        "group_0": {"weights": {"num_bits": 4, "type": "int", "group_size": None, "symmetric": True}}}}},
])  # fmt: skip
def test_what_writers_mean_is_taken(tmp_path, config):
    assert check(read_config(written(tmp_path, config) / "config.json")) == ""


def test_a_nested_key_is_told_where_it_stands(capsys, tmp_path):
    for quant, key in ((INT4, "head_dim"), ({**INT4, "bits": 0}, "quantization_config.bits")):
        text = {**MINIMAX, "quantization_config": quant, **({"head_dim": 0} if key == "head_dim" else {})}
        says = refused(capsys, written(tmp_path, {"model_type": "outer", "text_config": text}))
        assert f"config.json: text_config.{key}: got 0, wanted " in says


@pytest.mark.parametrize(("key", "value", "got"), [
    ("bits", "four", '"four"'), ("bits", 0, "0"), ("bits", LONG, "a number of 1329 bits"), ("bits", -1, "-1"),
    ("bits", None, "null"), ("bits", True, "true"), ("bits", 4.0, "4.0"), ("group_size", 0, "0"),
    ("group_size", LONG, "a number of 1329 bits"), ("group_size", "128", '"128"'), ("group_size", -2, "-2"),
    ("group_size", 1 << 20, "1048576"),
    ("sym", "yes", '"yes"'), ("lm_head", 1, "1"), ("quant_method", 7, "7"), ("data_type", 4, "4"),
])  # fmt: skip
@pytest.mark.parametrize("method", ["gptq", "auto-round"])
def test_a_width_that_is_none_is_not_taken_for_four_bits(capsys, tmp_path, method, key, value, got):
    config = {**MINIMAX, "quantization_config": {**INT4, "quant_method": method, key: value}}
    says = refused(capsys, written(tmp_path, config))
    assert says.startswith(f"{tmp_path}/config.json: quantization_config.{key}: got {got}, wanted ")


def test_widths_of_groups_and_blocks_are_checked(capsys, tmp_path):
    groups = {"config_groups": {"a": {"weights": {"num_bits": 4}}, "b": {"weights": {"num_bits": "eight"}}}}
    for quant, says in (
        ({**FP8, "weight_block_size": [0, 128]}, "weight_block_size: got list, wanted two whole numbers"),
        ({"quant_method": "compressed-tensors", **groups}, 'config_groups["b"].weights.num_bits: got "eight", wanted'),
    ):
        assert says in refused(capsys, written(tmp_path, {**MINIMAX, "quantization_config": quant}))


UNKNOWN = [
    ({"quant_method": "secret", "bits": 4}, 'quant_method: got "secret", whose bytes are not known; wanted one of '),
    ({"a": 1}, "quant_method is missing"), ({}, "quant_method is missing"),
    ({"quant_method": "compressed-tensors", "config_groups": {"FP8_DYNAMIC": ["Linear"]}}, "config_groups tells no"),
]  # fmt: skip


@pytest.mark.parametrize(("quant", "says"), UNKNOWN)
def test_a_quantisation_that_is_not_known_is_counted_by_headers_alone(capsys, tmp_path, quant, says):
    whole = tmp_path / "whole"
    indexed(whole, TENSORS, total_size=TOTAL)
    written(whole, {**SMALL, "quantization_config": quant})
    assert main(["--model", str(whole), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["weights_source"], found["weights_bytes"]) == ("headers", TOTAL)
    (note,) = found["notes"]
    assert note.startswith(f"quantization_config.{says}") and "headers" in note
    assert "--roofline wants those of one expert" in refused(capsys, whole, "--roofline")
    says = f"{tmp_path}/config.json: quantization_config.{says}"
    told = refused(capsys, written(tmp_path, {**SMALL, "quantization_config": quant}))
    assert told.startswith(says) and told.endswith(": there are none beside it")


def test_a_quantisation_in_a_file_of_its_own_is_told_by_that_file(capsys, tmp_path):
    written(tmp_path, MINIMAX)
    for quant, says in (({**INT4, "bits": 0}, "bits: got 0, wanted"), ({"bits": 4}, "quant_method is missing")):
        (tmp_path / "quantize_config.json").write_text(json.dumps(quant))
        assert refused(capsys, tmp_path).startswith(f"{tmp_path}/quantize_config.json: {says}")


def test_intels_own_name_of_auto_round_is_counted_as_it():
    found, usual = (quant_of({**INT4, "quant_method": name}) for name in ("intel/auto-round", "auto-round"))
    assert found.number == "int" and found.matrix_bytes(128, 128, 2) == usual.matrix_bytes(128, 128, 2)


@pytest.mark.parametrize("quant", ["none", "auto-round", "gptq", "fp8"])
def test_the_demo_is_planned_as_it_is_written(capsys, tmp_path, quant):
    assert demo([str(tmp_path / "m"), "--config-only", "--quant", quant]) == 0
    capsys.readouterr()
    assert main(["--model", str(tmp_path / "m"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["notes"] == []


def test_a_model_that_tells_no_length_is_noted(capsys, tmp_path):
    config = {key: value for key, value in MINIMAX_INT4.items() if key != "max_position_embeddings"}
    assert main(["--model", str(written(tmp_path, config)), "--tp", "4", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["notes"][0].startswith("max_position_embeddings is missing")


def locked(monkeypatch, name):
    """As a user without permission, whom the tests may not be."""
    for method in ("read_text", "open"):
        real = getattr(Path, method)

        def refuse(self, *arguments, _real=real, **more):
            if self.name == name:
                raise PermissionError(errno.EACCES, "Permission denied", str(self))
            return _real(self, *arguments, **more)

        monkeypatch.setattr(Path, method, refuse)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors.index.json", "model-00001-of-00001.safetensors"])
def test_no_permission_is_no_wrong_folder(capsys, monkeypatch, tmp_path, name):
    indexed(tmp_path, TENSORS, total_size=TOTAL)
    locked(monkeypatch, name)
    said = f"{tmp_path}/{name}: Permission denied; let this user read it"
    if name == "config.json":
        assert refused(capsys, tmp_path).startswith(said)
    else:
        assert main(["--model", str(tmp_path), "--json"]) == 0
        (note,) = (n for n in json.loads(capsys.readouterr().out)["notes"] if "Permission" in n)
        assert note.startswith(said) and "folder of a checkpoint" not in note


def test_a_folder_that_may_not_be_entered_is_told(capsys, monkeypatch):
    def refuse(self):
        raise PermissionError(errno.EACCES, "Permission denied", str(self))

    monkeypatch.setattr(Path, "is_dir", refuse)
    says = refused(capsys, "locked/model")
    assert says.startswith("locked/model: Permission denied; let this user read it and enter its folder")


def test_what_others_read_has_no_folder(tmp_path):
    """The doctor's records go into reports: the sentence stays without the user's folders there."""
    with pytest.raises(BadCheckpoint) as caught:
        read_config(tmp_path / "config.json")
    assert str(caught.value) == "config.json: No such file or directory; give the folder of a checkpoint"
    assert caught.value.problem.located == f"{tmp_path}/{caught.value}"
