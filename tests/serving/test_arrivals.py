"""What a checkpoint did not bring is refused by name, before it is served."""

from __future__ import annotations

import pytest
import torch

from xpu_moe.formats.quantization import UnsupportedCheckpoint
from xpu_moe.serving.arrivals import Arrivals, check_finite, on_disk

LAYER = "model.layers.3.mlp.experts"
NAME = r"model\.layers\.3\.block_sparse_moe\.experts"


def loader(param, loaded_weight, weight_name, shard_id, expert_id, return_success=False):
    """Stands in for vLLM's; the attribute is what vLLM asks for."""
    return return_success


loader.supports_moe_loading = True  # type: ignore[attr-defined]


def bring(arrivals: Arrivals, parameter: str, shards, shape=(4, 8), wanted=(4, 8)) -> None:
    load = arrivals.watch(parameter, loader, wanted)
    for expert, shard in shards:
        assert load(None, torch.zeros(shape), parameter, shard_id=shard, expert_id=expert, return_success=True)


ALL = [(expert, shard) for expert in range(3) for shard in ("w1", "w3")]


def test_a_layer_that_is_whole_passes_and_the_loader_stays_what_vllm_asks_for():
    arrivals = Arrivals(LAYER, 3, gated=True, load_format="auto")
    bring(arrivals, "w13_qweight", ALL)
    arrivals.require("w13_qweight")
    assert arrivals.watch("w2_qweight", loader, (4, 8)).supports_moe_loading
    arrivals.require("w2_scales")  # nobody watches it: the layer was made without a loader


@pytest.mark.parametrize("gap", ALL)
def test_one_tensor_that_is_missing_is_named(gap):
    arrivals = Arrivals(LAYER, 3, gated=True, load_format="auto")
    bring(arrivals, "w13_scales", [one for one in ALL if one != gap])
    with pytest.raises(UnsupportedCheckpoint, match=rf"{NAME}\.{gap[0]}\.{gap[1]}\.scales: not in the checkpoint"):
        arrivals.require("w13_scales")


def test_an_empty_layer_is_refused_unless_nothing_was_to_be_read():
    for load_format, refused in (("auto", True), ("safetensors", True), ("dummy", False), ("sharded_state", False)):
        arrivals = Arrivals(LAYER, 2, gated=False, load_format=load_format)
        bring(arrivals, "w13_qweight", [])
        if refused:
            with pytest.raises(UnsupportedCheckpoint, match=r"experts\.0\.w1\.qweight and 1 more of the layer: not in"):
                arrivals.require("w13_qweight")
        else:
            arrivals.require("w13_qweight")


def test_a_shape_that_would_broadcast_is_refused():
    arrivals = Arrivals(LAYER, 3, gated=True, load_format="auto")
    with pytest.raises(UnsupportedCheckpoint, match=rf"{NAME}\.1\.w2\.scales: got shape \(1, 8\), wanted \(4, 8\)"):
        bring(arrivals, "w2_scales", [(1, "w2")], shape=(1, 8))


def test_scales_that_are_no_numbers_are_counted_and_placed():
    scales = torch.ones(3, 2, 4, dtype=torch.float16)
    check_finite("w2_scales", scales)
    scales[1, 0, :2] = torch.tensor([torch.nan, torch.inf])
    with pytest.raises(UnsupportedCheckpoint, match=r"w2_scales\[1\]: 2 of 8 scales are NaN or infinite"):
        check_finite("w2_scales", scales)
    with pytest.raises(UnsupportedCheckpoint, match=r"qkv\.scales: 2 of 8"):
        check_finite("qkv.scales", scales[1])


def test_shapes_on_disk_are_those_of_gptq():
    assert on_disk(256, 96, 128, 8) == {"qweight": (32, 96), "scales": (2, 96), "qzeros": (2, 12), "g_idx": (256,)}
