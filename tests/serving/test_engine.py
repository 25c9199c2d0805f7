"""INT4 against vLLM's own kernels on the dequantised twin, in process; scales keep their bits; refusals reach the user.

Float32 activations, so that what is compared are the weights that were loaded, not bf16's rounding: two ways of
computing the same product in bf16 differ by 0.2 in these random models, stock against stock included.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.serving import checkpoints, offline
from tests.serving.checkpoints import PROMPTS, TOKENS, TOLERANCE
from tests.serving.compare import assert_same_tokens, largest_difference
from xpu_moe.cpu.moe_fp8_block import reference as fp8_reference
from xpu_moe.cpu.moe_u4 import reference
from xpu_moe.formats.checkpoint import Checkpoint, load_layer
from xpu_moe.serving.options import Options

pytestmark = [pytest.mark.slow, pytest.mark.vllm]


def layer_inputs(file: Path, hidden: int, experts: int, top_k: int) -> None:
    draw = torch.Generator().manual_seed(3)
    x = torch.randn(70, hidden, generator=draw)
    ids = torch.stack([torch.randperm(experts, generator=draw)[:top_k] for _ in range(70)]).to(torch.int32)
    torch.save([x, torch.rand(70, top_k, generator=draw), ids], file)


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """Every model of this file, served one after the other in one child: name -> what `offline.run` returns."""
    folder = tmp_path_factory.mktemp("engine")
    int4 = checkpoints.make(folder, "int4")
    gptq = checkpoints.make(folder, "gptq", quant="gptq")
    experts_only = checkpoints.make(folder, "experts_only", experts_only=True, group_size=64)
    fine = checkpoints.make(folder, "fine", scale_bits=11)
    fp8 = checkpoints.make(folder, "fp8", quant="fp8", head_dim=128)
    layer_inputs(folder / "layer.pt", 256, 8, 2)
    layer_inputs(folder / "layer8.pt", 256, 8, 2)

    def job(name, model, **extra):
        return {"name": name, "model": str(model), "prompts": PROMPTS, "tokens": TOKENS, **extra}

    jobs = [
        job("int4", int4),
        job("twin", checkpoints.twin(int4)),
        job("gptq", gptq),
        job("experts_only", experts_only),
        job("experts_only_twin", checkpoints.twin(experts_only)),
        job("int4_bf16", int4, llm={"dtype": "bfloat16"}),
        job("twin_bf16", checkpoints.twin(int4), llm={"dtype": "bfloat16"}),
        job("swapped", checkpoints.variant(int4, "swapped", checkpoints.swap_one_scale)),
        job("fp8", fp8, layer=str(folder / "layer8.pt")),
        job("fp8_twin", checkpoints.twin(fp8)),
        job("fine", fine, layer=str(folder / "layer.pt")),
        job(
            "named", int4,
            llm={"additional_config": {"xpu_moe": {"backend": "cpu_grouped", "decode_limit": 4, "routed": "on"}}},
        ),
        job("sym", checkpoints.variant(int4, "sym", checkpoints.edit_quantization(sym=False)), may_fail=True),
        job("missing", checkpoints.variant(int4, "missing", checkpoints.drop_one_tensor), may_fail=True),
        job("nan", checkpoints.variant(int4, "nan", checkpoints.spoil_one_scale), may_fail=True),
        job("typo", int4, llm={"additional_config": {"xpu_moe": {"decode_limits": 4}}}, may_fail=True),
        job("inc", int4, llm={"quantization": "inc"}, may_fail=True),
    ]  # fmt: skip
    (folder / "jobs.json").write_text(json.dumps(jobs))
    done = subprocess.run(
        [sys.executable, offline.__file__, str(folder / "jobs.json"), str(folder / "results.json")],
        capture_output=True, text=True, timeout=540,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    results = json.loads((folder / "results.json").read_text())
    return {**results, "folder": folder, "checkpoint": fine, "log": done.stdout + done.stderr}


@pytest.mark.parametrize(
    "quantised, dense", [("int4", "twin"), ("gptq", "twin"), ("experts_only", "experts_only_twin")]
)
def test_int4_equals_stock_vllm_on_the_dequantised_twin(ran, quantised, dense):
    one, other = ran[quantised], ran[dense]
    assert largest_difference(one["logprobs"], other["logprobs"]) < TOLERANCE
    assert_same_tokens(one["tokens"], other["tokens"], other["best"], TOLERANCE)
    told = one["report"]
    assert (told["backend"], told["prefill_backend"], told["workers"]) == ("cpu_grouped", "cpu_grouped", 1)
    assert other["report"]["backend"] != "cpu_grouped", "the twin must run on vLLM's own kernels"


def test_the_report_tells_each_kind_of_layer(ran):
    kinds = [(layer["kind"], layer["backend"], layer["count"]) for layer in ran["int4"]["report"]["layers"]]
    assert ("moe_int4", "cpu_grouped", 2) in kinds
    assert kinds.count(("linear_int4", "dequantized", 2)) == 2  # qkv and o of two layers
    assert [kind for kind, *_ in kinds].count("moe_int4") == 1
    only = ran["experts_only"]["report"]["layers"]
    assert [layer["kind"] for layer in only] == ["moe_int4"], "attention stays bf16 as the checkpoint says"
    moe = next(layer for layer in ran["int4"]["report"]["layers"] if layer["kind"] == "moe_int4")
    assert moe["bytes_kept"] <= moe["bytes_loaded"] and moe["layout"] == "n_major"
    assert "moe_int4 E8 k2 H256 I256 g128 silu float32 on cpu" in ran["log"]


def test_the_version_and_the_choice_are_in_the_compile_cache_key(ran):
    """vLLM hashes additional_config; the plugin fills in what nobody gave, for the checkpoints that it takes."""
    assert ran["int4"]["options"]["fingerprint"] == Options().fingerprint() == ran["int4"]["report"]["fingerprint"]
    assert ran["named"]["options"]["decode_limit"] == 4
    assert ran["twin"]["options"] is None


def test_in_bf16_it_is_as_near_to_the_truth_as_stock_is(ran):
    def distance(name):
        pairs = zip(ran["twin"]["logprobs"], ran[name]["logprobs"])
        gaps = [abs(a - b) for one, other in pairs for a, b in zip(one, other)]
        return sum(gaps) / len(gaps)

    assert distance("int4_bf16") < 1.5 * distance("twin_bf16")


def test_one_swapped_scale_changes_the_tokens(ran):
    assert largest_difference(ran["int4"]["logprobs"], ran["swapped"]["logprobs"]) > 2 * TOLERANCE
    assert ran["int4"]["tokens"] != ran["swapped"]["tokens"]


def test_full_fp16_scales_keep_their_bits_through_vllms_loader(ran):
    """The layer as vLLM loaded it against float64 from the files; scales cut to bf16 would miss by far."""
    x, weights, ids = torch.load(ran["folder"] / "layer.pt", weights_only=True)
    layer = load_layer(ran["checkpoint"], 0)
    truth = reference(
        x, layer.w13, layer.w13_scale, layer.w2, layer.w2_scale, weights, ids, nibble="u4", group_size=128
    )
    got = torch.load(ran["folder"] / "layer.pt.out", weights_only=True)
    assert float((got.double() - truth).norm() / truth.norm()) < 1e-5
    cut = reference(
        x, layer.w13, layer.w13_scale.bfloat16(), layer.w2, layer.w2_scale.bfloat16(), weights, ids, nibble="u4",
        group_size=128,
    )  # fmt: skip
    assert float((cut - truth).norm() / truth.norm()) > 1e-3


def test_block_fp8_is_served_on_a_cpu_too(ran):
    """The layer equals float64 from the files; the twin's bf16 rounds the weights, so it is near, not equal."""
    told = ran["fp8"]["report"]
    assert told["backend"] == "cpu_grouped" and {"moe_fp8", "linear_fp8"} == {layer["kind"] for layer in told["layers"]}
    assert largest_difference(ran["fp8"]["logprobs"], ran["fp8_twin"]["logprobs"]) < 0.1
    source = Checkpoint(ran["folder"] / "fp8")

    def stacked(part, suffix):
        base = "model.layers.0.block_sparse_moe.experts"
        return torch.stack([source.tensor(f"{base}.{expert}.{part}.{suffix}") for expert in range(8)])

    def both(suffix):
        gate, up = stacked("w1", suffix), stacked("w3", suffix)
        return torch.cat((gate.view(torch.uint8), up.view(torch.uint8)), 1).view(gate.dtype)

    x, weights, ids = torch.load(ran["folder"] / "layer8.pt", weights_only=True)
    truth = fp8_reference(
        x, None, both("weight"), both("weight_scale_inv"), stacked("w2", "weight"), stacked("w2", "weight_scale_inv"),
        weights, ids,
    )  # fmt: skip
    got = torch.load(ran["folder"] / "layer8.pt.out", weights_only=True)
    assert float((got.double() - truth).norm() / truth.norm()) < 1e-5


def test_choices_by_option_serve_and_nothing_changes(ran):
    """A backend by name, another decode limit, the router inside the decode call."""
    assert ran["named"]["report"]["layers"][-1]["routing"].startswith("in the decode call: cpu_grouped")
    assert ran["int4"]["report"]["layers"][-1]["routing"].startswith("vLLM: ")
    assert ran["named"]["report"]["backend"] == "cpu_grouped"
    assert ran["named"]["report"]["layers"][-1]["decode_limit"] == 4
    assert largest_difference(ran["named"]["logprobs"], ran["int4"]["logprobs"]) < TOLERANCE
    assert ran["named"]["report"]["fingerprint"] != ran["int4"]["report"]["fingerprint"]


def test_a_checkpoint_that_cannot_be_served_is_refused_by_field(ran):
    assert "quantization_config.sym: got False, wanted true" in ran["sym"]["error"]


def test_a_tensor_that_is_missing_or_no_number_is_refused_by_name(ran):
    assert f"{checkpoints.ONE_SCALE}: not in the checkpoint" in ran["missing"]["error"]
    assert "w2_scales[0]: 1 of 512 scales are NaN" in ran["nan"]["error"]


def test_a_wrong_option_is_refused_by_name(ran):
    assert "xpu_moe.decode_limits: unknown" in ran["typo"]["error"]


def test_naming_vllms_own_method_keeps_the_plugin_off(ran):
    assert "--quantization inc was asked for" in ran["log"]
    assert "error" not in ran["inc"] or "xpu_moe" not in ran["inc"]["error"]
