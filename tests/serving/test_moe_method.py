"""The MoE method on vLLM's own base classes, layer by layer: no engine, no checkpoint on disk."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

from tests.ops.table import MoeCase, moe_inputs, relative_error
from tests.serving import xpu_kernels
from xpu_moe import ops
from xpu_moe.cpu.moe_u4 import GroupedByExpert, reference
from xpu_moe.formats import gptq
from xpu_moe.formats.quantization import Int4Spec, UnsupportedCheckpoint
from xpu_moe.ops import contract
from xpu_moe.serving import compat, stock_xpu, tell, workspace
from xpu_moe.serving.choice import Unservable
from xpu_moe.serving.report import Worker

pytestmark = [pytest.mark.slow, pytest.mark.vllm]

SHAPE = MoeCase(tokens=3, experts=4, top_k=2, hidden=128, inter=64, group=32)


@pytest.fixture
def method(monkeypatch):
    """Makes (method, layer) with loaded weights; the vLLM config is a stand-in."""
    from xpu_moe.serving import moe_int4

    monkeypatch.setattr(tell, "_worker", Worker())
    monkeypatch.setattr(compat, "rank_and_world", lambda: (0, 1))
    stock_xpu._convention.cache_clear()
    workspace._buffers.clear()

    def make(options=None, dtype=torch.float32, group=32, inter=64, max_tokens=4096, tp=1, experts=4, **layer_fields):
        config = SimpleNamespace(
            additional_config={"xpu_moe": options or {}},
            scheduler_config=SimpleNamespace(max_num_batched_tokens=max_tokens),
        )
        monkeypatch.setattr(compat, "vllm_config", lambda: config)
        layer = torch.nn.Module()
        fields = {
            "layer_name": "model.layers.0.mlp.experts", "activation": SimpleNamespace(value="silu"), "use_ep": False,
            "apply_router_weight_on_input": False, "global_num_experts": experts, "top_k": 2,
            "scoring_func": "sigmoid", "use_grouped_topk": False, "custom_routing_function": None,
            "routed_scaling_factor": 1.0, "renormalize": True,
            "e_score_correction_bias": torch.linspace(-0.1, 0.1, experts),
        }  # fmt: skip
        for name, value in {**fields, **layer_fields}.items():
            setattr(layer, name, value)
        made = moe_int4.Int4MoeMethod(Int4Spec("auto-round", group, 7), SimpleNamespace(tp_size=tp))
        made.create_weights(layer, experts, 128, inter, dtype, weight_loader=None)
        return made, layer

    yield make
    stock_xpu._convention.cache_clear()
    workspace._buffers.clear()


def fill(layer, drawn) -> None:
    """The checkpoint's packing into the layer's parameters, as vLLM's loader leaves it."""
    for name in ("w13", "w2"):
        for expert in range(drawn[name].shape[0]):
            getattr(layer, f"{name}_qweight").data[expert] = gptq.qweight_from_rows(drawn[name][expert])
        getattr(layer, f"{name}_scales").data.copy_(drawn[f"{name}_scale"].transpose(1, 2))


def logits_of(drawn) -> torch.Tensor:
    return torch.randn(drawn["x"].shape[0], drawn["w13"].shape[0], generator=torch.Generator().manual_seed(5))


def call(drawn) -> tuple[torch.Tensor, ...]:
    return drawn["x"], drawn["topk_weights"], drawn["topk_ids"]


def test_weights_are_turned_in_their_own_storage_and_give_the_truth(method):
    made, layer = method()
    drawn = moe_inputs(SHAPE, torch.float32)
    fill(layer, drawn)
    before = [getattr(layer, f"{name}_{part}").data_ptr() for name in ("w13", "w2") for part in ("qweight", "scales")]
    made.process_weights_after_loading(layer)
    assert sorted(layer._parameters) == ["w13_scales", "w13_weight", "w2_scales", "w2_weight"]
    kept = [getattr(layer, f"{name}_{part}").data_ptr() for name in ("w13", "w2") for part in ("weight", "scales")]
    assert kept == before
    assert torch.equal(layer.w13_weight, drawn["w13"]) and torch.equal(layer.w2_scales, drawn["w2_scale"])
    assert relative_error(made.apply(layer, *call(drawn)), reference(**drawn, nibble="u4", group_size=32)) < 1e-5
    (told,) = tell._worker.layers
    assert (told.backend, told.prefill_backend, told.layout) == ("cpu_grouped", "cpu_grouped", "n_major")
    assert (
        told.bytes_kept == 4 * (128 * 64 + 128 * 4 * 2 + 128 * 32 + 128 * 2 * 2) and told.bytes_loaded > told.bytes_kept
    )


def test_one_group_a_row_is_served_too(method):
    shape = MoeCase(tokens=3, experts=4, top_k=2, hidden=128, inter=32, group=32)
    made, layer = method(inter=32)
    drawn = moe_inputs(shape, torch.float32)
    fill(layer, drawn)
    made.process_weights_after_loading(layer)
    assert relative_error(made.apply(layer, *call(drawn)), reference(**drawn, nibble="u4", group_size=32)) < 1e-5


def test_a_named_backend_is_what_runs(method):
    made, layer = method({"backend": "cpu_grouped", "decode_limit": 2})
    assert made.choice.decode.name == "cpu_grouped" and made.choice.limit == 2
    drawn = moe_inputs(SHAPE, torch.float32)
    fill(layer, drawn)
    made.process_weights_after_loading(layer)
    assert relative_error(made.apply(layer, *call(drawn)), reference(**drawn, nibble="u4", group_size=32)) < 1e-5
    with pytest.raises(Unservable, match="unknown for moe_u4"):
        method({"backend": "typo"})


def test_the_layer_is_one_opaque_call_to_dynamo_for_any_number_of_tokens(method):
    made, layer = method()
    drawn = moe_inputs(SHAPE, torch.float32)
    fill(layer, drawn)
    made.process_weights_after_loading(layer)
    compiled = torch.compile(lambda *args: made.apply(layer, *args), backend="eager", dynamic=True, fullgraph=True)
    for tokens in (2, 70, 3):  # both sides of the decode limit
        drawn = {**drawn, **{k: v for k, v in moe_inputs(MoeCase(tokens, 4, 2, 128, 64, 32), torch.float32).items()
                             if k in ("x", "topk_weights", "topk_ids")}}  # fmt: skip
        truth = reference(**drawn, nibble="u4", group_size=32)
        assert relative_error(compiled(*call(drawn)), truth) < 1e-5


def test_the_router_can_run_inside_the_decode_call(method):
    made, layer = method({"routed": "on"})
    plain, other = method({"routed": "auto"})
    assert made.is_monolithic and not plain.is_monolithic and "vLLM" in plain.routing
    drawn = moe_inputs(SHAPE, torch.float32)
    for one, where in ((made, layer), (plain, other)):
        fill(where, drawn)
        one.process_weights_after_loading(where)
    logits = logits_of(drawn)
    weights, ids = ops.route_sigmoid_topk(logits, layer.e_score_correction_bias, 2)
    wanted = plain.apply(other, drawn["x"], weights, ids)
    torch.testing.assert_close(made.apply_monolithic(layer, drawn["x"], logits), wanted, rtol=1e-5, atol=1e-6)
    compiled = torch.compile(lambda *a: made.apply_monolithic(layer, *a), backend="eager", dynamic=True, fullgraph=True)
    for tokens in (3, 70):
        x = torch.randn(tokens, 128)
        logits = torch.randn(tokens, 4)
        weights, ids = ops.route_sigmoid_topk(logits, layer.e_score_correction_bias, 2)
        torch.testing.assert_close(compiled(x, logits), plain.apply(other, x, weights, ids), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "fields", [{"scoring_func": "softmax"}, {"use_grouped_topk": True}, {"routed_scaling_factor": 2.5}]
)
def test_other_routings_stay_vllms(method, fields):
    made, _ = method({"routed": "on"}, **fields)
    assert not made.is_monolithic and "not sigmoid top-k" in made.routing


class Recording(GroupedByExpert):
    """The CPU's arithmetic under another name; keeps the addresses of the weights that it is given."""

    name = "recording"

    def __init__(self):
        self.seen = []
        self.bound = 0

    def bind(self, w13, w13_scale, w2, w2_scale, *, nibble, group_size, top_k, dtype, activation):
        self.bound += 1

        def decided(x, topk_weights, topk_ids, out, workspace):
            self.run(
                x, w13, w13_scale, w2, w2_scale, topk_weights, topk_ids, nibble=nibble, group_size=group_size,
                activation=activation, layout="n_major", out=out,
            )  # fmt: skip

        return decided

    def run(self, x, w13, w13_scale, w2, w2_scale, *rest, **keywords):
        self.seen.append((w13.data_ptr(), w2.data_ptr()))
        return super().run(x, w13, w13_scale, w2, w2_scale, *rest, **keywords)


@pytest.fixture
def xpu(monkeypatch):
    """An Intel GPU as far as the plugin can see: stand-in kernels for prefill, a recording decode backend."""
    recorder = Recording()
    room = ModuleType("recording_room")
    room.BACKENDS = (recorder,)
    monkeypatch.setitem(sys.modules, room.__name__, room)
    monkeypatch.setattr(contract, "ROOMS", {"xpu": (room.__name__,), "cpu": (room.__name__,)})
    monkeypatch.setattr(compat, "device_kind", lambda: "xpu")
    contract.backends.cache_clear()
    contract.select.cache_clear()
    from xpu_moe.serving import moe_int4

    monkeypatch.setattr(
        moe_int4.Int4MoeMethod, "_stock", staticmethod(lambda case: stock_xpu.stock(torch.device("cpu")))
    )
    yield recorder
    contract.backends.cache_clear()
    contract.select.cache_clear()


@pytest.mark.parametrize("first", ["decode", "prefill"])
@pytest.mark.parametrize("style", xpu_kernels.STYLES)
def test_on_xpu_decode_and_prefill_read_one_storage(method, xpu, monkeypatch, style, first):
    recorded = xpu_kernels.install(monkeypatch, style)
    made, layer = method({"decode_limit": 4}, dtype=torch.float16)
    assert (made.choice.decode.name, made.choice.prefill.name) == ("recording", stock_xpu.NAME)
    small = moe_inputs(SHAPE, torch.float16)
    fill(layer, small)
    large = {**small, **{k: v for k, v in moe_inputs(MoeCase(9, 4, 2, 128, 64, 32), torch.float16).items()
                         if k in ("x", "topk_weights", "topk_ids")}}  # fmt: skip
    made.process_weights_after_loading(layer)
    order = [small, large, small, large] if first == "decode" else [large, small, large, small]
    for drawn in order:
        assert relative_error(made.apply(layer, *call(drawn)), reference(**drawn, nibble="u4", group_size=32)) < 2e-3
    addresses = {(layer.w13_weight.data_ptr(), layer.w2_weight.data_ptr())}
    assert set(xpu.seen) == addresses and set(recorded.weights) == addresses
    assert len(xpu.seen) == len(recorded.weights) == 2 and xpu.bound == 1
    (told,) = tell._worker.layers
    assert (told.nibble, told.backend, told.prefill_backend) == ("s4", "recording", stock_xpu.NAME)


def test_on_xpu_without_prefill_kernels_it_refuses_before_loading(method, xpu, monkeypatch):
    monkeypatch.setattr(
        Recording, "supports", lambda self, case: contract.Support(case.tokens <= 64, "M 1..64 only"), raising=True
    )
    with pytest.raises(Unservable, match=r"M > 64.*does not import"):
        method(dtype=torch.float16)


def test_a_width_that_is_no_multiple_of_the_group_names_the_way_out(method):
    with pytest.raises(Unservable, match=r"intermediate_size: got 64 a rank at tp 8.*group_size 128.*1 or 2 or 4"):
        method(group=128, tp=8)


@pytest.mark.parametrize(
    "fields, said",
    [
        ({"use_ep": True}, "expert parallelism"),
        ({"apply_router_weight_on_input": True}, "apply_router_weight_on_input"),
        ({"activation": SimpleNamespace(value="gelu")}, "activation: got gelu"),
        ({"global_num_experts": 8}, "experts on this rank: got 4, wanted 8"),
    ],
)
def test_what_the_operator_lacks_is_refused_at_load(method, fields, said):
    with pytest.raises(Unservable, match=said):
        method(**fields)


def test_real_zero_points_and_reordered_rows_are_refused_by_tensor(method, monkeypatch):
    made, layer = method()
    fill(layer, moe_inputs(SHAPE, torch.float32))
    layer.w2_qzeros.data[1, 0, 0] = 0x77777776
    with pytest.raises(UnsupportedCheckpoint, match="w2_qzeros: zero point 6"):
        made.process_weights_after_loading(layer)
    monkeypatch.setattr(compat, "loads_g_idx", lambda: True)
    made, layer = method()
    fill(layer, moe_inputs(SHAPE, torch.float32))
    layer.w13_g_idx.data[2, :2] = torch.tensor([1, 0], dtype=torch.int32)
    with pytest.raises(UnsupportedCheckpoint, match=r"w13_g_idx: rows are reordered"):
        made.process_weights_after_loading(layer)


def test_a_shard_whose_groups_start_later_is_no_reordering(method, monkeypatch):
    monkeypatch.setattr(compat, "loads_g_idx", lambda: True)
    made, layer = method()
    fill(layer, moe_inputs(SHAPE, torch.float32))
    layer.w2_g_idx.data += 2  # rank 1 of 2: its groups are the checkpoint's third and fourth
    made.process_weights_after_loading(layer)
    assert "w2_g_idx" not in layer._parameters
