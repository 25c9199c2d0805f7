"""What runs on the OpenCL CPU device, in a process of its own (libsycl and its threads stay out of the test process).

`python opencl_cases.py [--libsycl-8] [NAME …]` runs the cases and prints one JSON object: name -> figures, or
{"failed": traceback}. Every function `case_*` is a case; it asserts, and returns what is worth telling.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
import time
import traceback
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[3]))

from tests.ops.table import MoeCase, moe_inputs, relative_error
from xpu_moe import ops
from xpu_moe.cpu.moe_u4 import activate, dequantize
from xpu_moe.cpu.moe_u4 import reference as moe_reference
from xpu_moe.cpu.moe_u4_routed import reference as routed_reference
from xpu_moe.cpu.qk_rms import reference as rms_reference
from xpu_moe.cpu.route_sigmoid_topk import route as route_reference
from xpu_moe.esimd.kernels import launch as shapes
from xpu_moe.esimd.runtime import libsycl, opencl_probe, operators, session, standalone
from xpu_moe.esimd.runtime.library import RuntimeFailure
from xpu_moe.esimd.runtime.moe import Moe, RoutedMoe
from xpu_moe.esimd.runtime.room import ESIMD, TWINS, KernelMissing
from xpu_moe.esimd.runtime.small import Partial, Rms, Route
from xpu_moe.esimd.runtime.spirv import SpirvError
from xpu_moe.esimd.runtime.workspace import Workspace
from xpu_moe.ops.checks import BadArgument

TOLERANCE = {torch.float16: 1e-3, torch.bfloat16: 8e-3}
DTYPES = tuple(TOLERANCE)
# libsycl's major version: 9 (oneAPI 2026), or 8 (2025.3) with `--libsycl-8` in front.
MAJOR = 8 if "--libsycl-8" in sys.argv else 9


def device() -> standalone.Standalone:
    return standalone.start(MAJOR)


def running() -> session.Session:
    return session.for_opencl_cpu(MAJOR)


def twin(kind):
    return kind(TWINS, lambda index: running())


def usm(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: device().tensor(tensor) for name, tensor in tensors.items()}


def poisoned(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return device().empty(*shape, dtype=dtype)


def settings(case: MoeCase) -> dict:
    return {"nibble": case.nibble, "group_size": case.group, "activation": case.activation}


def run_moe(case: MoeCase, given: dict[str, torch.Tensor]) -> torch.Tensor:
    """moe_u4 by the twin, all in USM, output and workspace poisoned."""
    out = poisoned(case.tokens, case.hidden, dtype=given["x"].dtype)
    work = poisoned(max(1, 4 * case.tokens * case.top_k * case.inter), dtype=torch.uint8)
    twin(Moe).run(*usm(given).values(), **settings(case), out=out, workspace=work)
    device().wait()
    return out


def raised(wanted: type[Exception], call) -> str:
    try:
        call()
    except wanted as error:
        return str(error)
    raise AssertionError(f"no {wanted.__name__}")


def case_moe_against_float64_and_the_cpu_operator() -> dict:
    """Every dtype, group, nibble and activation; M 1..8."""
    worst = dict.fromkeys(map(str, DTYPES), 0.0)
    for number, (dtype, group, tokens) in enumerate(product(DTYPES, (32, 64, 128), (1, 2, 3, 4, 5, 8))):
        case = MoeCase(
            tokens, 8, 2 + number % 3, 256, 128, group, ("u4", "s4")[number % 2],
            ("silu", "relu2", "relu2_no_mul", "silu_no_mul")[number % 4],
        )  # fmt: skip
        given = moe_inputs(case, dtype, seed=number)
        got = run_moe(case, given)
        error = relative_error(got, moe_reference(*given.values(), **settings(case)))
        assert error <= TOLERANCE[dtype], f"{case} {dtype}: {error}"
        assert relative_error(got, ops.moe_u4(*given.values(), **settings(case)).double()) <= 2 * TOLERANCE[dtype]
        worst[str(dtype)] = max(worst[str(dtype)], error)
    return worst


def case_minimax_shapes_at_tp4_and_tp8() -> dict:
    errors = {}
    sizes = ((1, 8, 384, 128), (4, 2, 384, 128), (2, 4, 192, 64), (1, 8, 192, 32), (16, 8, 384, 128), (64, 8, 192, 64))
    for tokens, top_k, inter, group in sizes:
        hidden = 3072 if tokens <= 4 else 384  # the float64 truth of many tokens takes long
        case = MoeCase(tokens, 16, top_k, hidden, inter, group)
        given = moe_inputs(case, torch.float16)
        errors[str(case)] = relative_error(run_moe(case, given), moe_reference(*given.values(), **settings(case)))
    assert max(errors.values()) <= 1e-3, errors
    return errors


def case_all_256_byte_values_are_exact() -> dict:
    """One-hot x, identity-like w2: the output is a weight's value, which float16 holds exactly."""
    for nibble in ("u4", "s4"):
        hidden = inter = 512
        w13 = torch.arange(256, dtype=torch.uint8).repeat(1, inter, 1)[..., : hidden // 2].contiguous()
        w2 = torch.full((1, hidden, inter // 2), 0x88 if nibble == "u4" else 0x00, dtype=torch.uint8)
        one = 1 + (8 if nibble == "u4" else 0)
        zero = 8 if nibble == "u4" else 0
        for row in range(inter):
            low, high = (one, zero) if row % 2 == 0 else (zero, one)
            w2[0, row, row // 2] = low | high << 4
        ones = lambda *size: torch.ones(size, dtype=torch.float16)  # noqa: E731
        case = MoeCase(1, 1, 1, hidden, inter, 128, nibble, "relu2_no_mul")
        for k in range(0, 2 * 16, 1):
            x = torch.zeros(1, hidden, dtype=torch.float16)
            x[0, k * 16 + k % 16] = 1
            given = {
                "x": x, "w13": w13, "w13_scale": ones(1, inter, 4), "w2": w2, "w2_scale": ones(1, hidden, 4),
                "topk_weights": torch.ones(1, 1), "topk_ids": torch.zeros(1, 1, dtype=torch.int32),
            }  # fmt: skip
            got = run_moe(case, given)
            want = moe_reference(*given.values(), **settings(case))
            assert torch.equal(got.double(), want), (nibble, k)
    return {}


def case_route_weights_are_read_without_a_cast() -> dict:
    """float16 and float32 route weights give different results, and ours is that of the weights given."""
    case = MoeCase(2, 8, 4, 256, 128, 64)
    given = moe_inputs(case, torch.float16)
    given["topk_weights"] = given["topk_weights"] * 1e-6 + 1e-7  # float16 has few digits here
    given |= {"w13_scale": given["w13_scale"] * 8, "w2_scale": given["w2_scale"] * 64}  # so that the output has them
    exact, rounded = (
        moe_reference(*(given | {"topk_weights": weights}).values(), **settings(case))
        for weights in (given["topk_weights"], given["topk_weights"].half().float())
    )
    got = run_moe(case, given).double()
    half = run_moe(case, given | {"topk_weights": given["topk_weights"].half()}).double()
    assert relative_error(got, exact) < 1e-3 < relative_error(exact, rounded) and not torch.equal(got, half)
    return {"float32": relative_error(got, exact), "rounded": relative_error(exact, rounded)}


def case_ids_out_of_range_count_nothing_and_are_never_read() -> dict:
    case = MoeCase(4, 8, 4, 256, 128, 64)
    for ids_dtype, strange in ((torch.int32, (-1, 8, 2**31 - 1)), (torch.int64, (-1, 8, 2**40, -(2**40)))):
        given = moe_inputs(case, torch.float16)
        ids = given["topk_ids"].to(ids_dtype)
        for slot, value in enumerate(strange):
            ids[slot % 4, slot] = value
        ids[3] = -1
        got = run_moe(case, given | {"topk_ids": ids})
        truth = moe_reference(*(given | {"topk_ids": ids}).values(), **settings(case))
        assert relative_error(got, truth) <= 1e-3 and bool((got[3] == 0).all())
    return {}


def case_under_check_an_id_out_of_range_raises() -> dict:
    case = MoeCase(1, 8, 2, 256, 128, 64)
    given = usm(moe_inputs(case, torch.float16) | {"topk_ids": torch.tensor([[3, 8]], dtype=torch.int32)})
    x, w13, w13_scale, w2, w2_scale, weights, ids = given.values()
    out, work = poisoned(1, 256, dtype=torch.float16), poisoned(1 << 12, dtype=torch.uint8)
    bind = lambda: twin(Moe).bind(  # noqa: E731
        w13, w13_scale, w2, w2_scale, nibble="u4", group_size=64, top_k=2, dtype=torch.float16
    )
    bind()(x, weights, ids, out, work)
    device().wait()
    os.environ["XPU_MOE_CHECK"] = "1"
    try:
        message = raised(BadArgument, lambda: bind()(x, weights, ids, out, work))
    finally:
        del os.environ["XPU_MOE_CHECK"]
    assert "topk_ids[0, 1]: got 8, wanted 0 <= id < 8 experts" in message, message
    return {}


def case_a_duplicated_expert_counts_twice() -> dict:
    case = MoeCase(1, 8, 2, 256, 128, 64)
    given = moe_inputs(case, torch.bfloat16) | {"topk_ids": torch.tensor([[3, 3]], dtype=torch.int32)}
    error = relative_error(run_moe(case, given), moe_reference(*given.values(), **settings(case)))
    assert error <= 8e-3
    return {"error": error}


def case_hidden_vectors_lie_where_the_esimd_kernels_put_them() -> dict:
    """The workspace after a run is what `launch.hidden_position` says: the kinds of kernels agree on it."""
    case = MoeCase(2, 8, 2, 256, 128, 64)
    given = moe_inputs(case, torch.float16)
    work = poisoned(4 * 2 * 2 * 128, dtype=torch.uint8)
    out = poisoned(2, 256, dtype=torch.float16)
    twin(Moe).run(*usm(given).values(), **settings(case), out=out, workspace=work)
    device().wait()
    hidden = work.view(torch.float32).view(2, 2, 128)
    order = [shapes.hidden_position(column) for column in range(128)]
    assert sorted(order) == list(range(128))
    for token, slot in product(range(2), range(2)):
        expert = int(given["topk_ids"][token, slot])
        weights = dequantize(given["w13"][expert], given["w13_scale"][expert], "u4")
        truth = activate((weights @ given["x"][token].float())[None], "silu")[0]
        assert torch.allclose(hidden[token, slot, order], truth, rtol=1e-4, atol=1e-4)
    return {}


def case_runs_are_bit_identical() -> dict:
    case = MoeCase(8, 8, 8, 256, 128, 64)
    given = moe_inputs(case, torch.float16)
    first = run_moe(case, given)
    assert all(torch.equal(run_moe(case, given), first) for _ in range(5))
    return {}


def case_rows_may_be_strided_and_out_too() -> dict:
    case = MoeCase(3, 8, 2, 256, 128, 64)
    given = moe_inputs(case, torch.float16)
    tensors = usm(given)
    wide = device().tensor(torch.zeros(3, 512, dtype=torch.float16))
    wide[:, :256] = given["x"]
    wide_out = poisoned(3, 512, dtype=torch.float16)
    before = wide_out.view(torch.int16).clone()
    work = poisoned(1 << 16, dtype=torch.uint8)
    twin(Moe).run(wide[:, :256], *list(tensors.values())[1:], **settings(case), out=wide_out[:, 256:], workspace=work)
    device().wait()
    assert relative_error(wide_out[:, 256:], moe_reference(*given.values(), **settings(case))) <= 1e-3
    assert torch.equal(wide_out.view(torch.int16)[:, :256], before[:, :256])
    return {}


def case_what_does_not_fit_is_an_error_with_the_argument() -> dict:
    case = MoeCase(2, 8, 2, 256, 128, 64)
    given = usm(moe_inputs(case, torch.float16))
    out, work = poisoned(2, 256, dtype=torch.float16), poisoned(1 << 16, dtype=torch.uint8)

    def call(out=out, workspace=work, **changed):
        twin(Moe).run(*(given | changed).values(), **settings(case), out=out, workspace=workspace)

    call()
    small = raised(RuntimeError, lambda: call(workspace=work[:100]))
    assert "workspace.shape: got [100], wanted one dimension of at least 2048 bytes" in small, small
    strided = raised(RuntimeError, lambda: call(w13=given["w13"].transpose(0, 1).contiguous().transpose(0, 1)))
    assert "w13.stride(1)" in strided and ".contiguous()" in strided, strided
    shape = raised(RuntimeError, lambda: call(out=poisoned(3, 256, dtype=torch.float16)))
    assert "out.shape: got [3, 256], wanted [2, 256]" in shape, shape
    dtype = raised(RuntimeError, lambda: call(out=poisoned(2, 256, dtype=torch.bfloat16)))
    assert "out.dtype" in dtype and "wanted float16" in dtype, dtype
    odd = device().tensor(torch.zeros(2 * 256 + 8, dtype=torch.float16))[3 : 3 + 512].view(2, 256)
    address = raised(RuntimeError, lambda: call(x=odd))
    assert "x.data_ptr(): got an address that is not a multiple of 16 bytes" in address, address
    pages = np.zeros((1 << 30) + 256, np.float16)  # address space alone: refused by its stride, never touched
    huge = torch.as_strided(torch.from_numpy(pages), (2, 256), (1 << 30, 1))
    apart = raised(RuntimeError, lambda: call(x=huge))
    assert "x.stride(0): got 1073741824, wanted at most 1073741823" in apart, apart
    many = device().tensor(torch.zeros(65, 256, dtype=torch.float16))
    routes = {"topk_weights": torch.zeros(65, 2), "topk_ids": torch.zeros(65, 2, dtype=torch.int32)}
    tokens = raised(RuntimeError, lambda: call(x=many, **usm(routes), out=many.clone()))
    assert "x.shape[0]: got 65 tokens, wanted 1..64" in tokens, tokens
    bf16 = raised(KernelMissing, lambda: call(w13_scale=given["w13_scale"].bfloat16()))
    assert "w13_scale.dtype: got torch.bfloat16, wanted torch.float16" in bf16, bf16
    unknown = raised(RuntimeError, lambda: operators.moe_u4(*given.values(), out, work, 7))
    assert "plan 7 is not known in this process" in unknown, unknown
    return {"small workspace": small}


def case_no_tokens_launch_nothing() -> dict:
    case = MoeCase(0, 8, 2, 256, 128, 64)
    given = usm(moe_inputs(case, torch.float16))
    out = twin(Moe).run(
        *given.values(), **settings(case), out=poisoned(0, 256, dtype=torch.float16),
        workspace=poisoned(1, dtype=torch.uint8),
    )  # fmt: skip
    assert out.shape == (0, 256)
    return {}


def case_routed_from_logits_to_output() -> dict:
    worst = 0.0
    for number, (dtype, kind, bias) in enumerate(
        product(DTYPES, (torch.float32, torch.float16, torch.bfloat16), (None, torch.float32, torch.bfloat16))
    ):
        case = MoeCase(1 + number % 5, 32, 1 + number % 8, 256, 128, 64)
        given = moe_inputs(case, dtype, seed=number)
        logits = torch.randn(case.tokens, 32).to(kind)
        correction = None if bias is None else torch.randn(32).to(bias)
        experts = dict(list(given.items())[:5])
        out = poisoned(case.tokens, 256, dtype=dtype)
        work = poisoned(twin(RoutedMoe).workspace(ops.Case(
            "moe_u4_routed", "cpu", dtype=str(dtype).removeprefix("torch."), tokens=case.tokens, hidden_size=256,
            intermediate_size=128, num_experts=32, top_k=case.top_k, group_size=64, nibble="u4", activation="silu",
        )), dtype=torch.uint8)  # fmt: skip
        keywords = {**settings(case), "renormalize": number % 2 == 0, "scale": 1.5}
        twin(RoutedMoe).run(
            *usm(experts).values(), device().tensor(logits), None if bias is None else device().tensor(correction),
            case.top_k, **keywords, out=out, workspace=work,
        )  # fmt: skip
        device().wait()
        truth = routed_reference(*experts.values(), logits, correction, case.top_k, **keywords)
        error = relative_error(out, truth)
        assert error <= TOLERANCE[dtype], (str(case), kind, bias, error)
        worst = max(worst, error / TOLERANCE[dtype])
    return {"worst error / limit": worst}


def run_route(logits, bias, top_k: int, **settings) -> tuple[torch.Tensor, torch.Tensor]:
    weights = poisoned(logits.shape[0], top_k, dtype=torch.float32)
    ids = poisoned(logits.shape[0], top_k, dtype=torch.int32)
    held = None if bias is None else device().tensor(bias)
    twin(Route).run_out(device().tensor(logits), held, top_k, weights, ids, **settings)
    device().wait()
    return weights, ids


def case_router_ties_nan_and_infinities() -> dict:
    inf, nan = float("inf"), float("nan")
    rows = torch.zeros(7, 40)
    rows[1] = torch.arange(40) % 4  # ties
    rows[2, ::2] = nan
    rows[3] = nan
    rows[3, [5, 39]] = torch.tensor([1.0, -1.0])  # fewer usable than top_k
    rows[4] = -inf
    rows[5, 7] = inf
    rows[6] = torch.randn(40)
    for kind, bias in product(
        (torch.float32, torch.bfloat16), (None, torch.linspace(-1, 1, 40), torch.full((40,), -inf))
    ):
        logits = rows.to(kind)
        got = run_route(logits, bias, 8, renormalize=True, scale=2.0)
        weights, ids = route_reference(logits, bias, 8, True, 2.0)
        assert torch.equal(got[1], ids), (kind, got[1], ids)
        assert torch.allclose(got[0], weights, rtol=2e-6, atol=1e-12), (got[0] - weights).abs().max()
    return {}


def case_router_at_minimax_size_and_at_its_limits() -> dict:
    for experts, top_k, tokens in ((256, 8, 4), (512, 16, 64), (3, 3, 1)):
        logits, bias = torch.randn(tokens, experts), torch.randn(experts) * 0.1
        weights, ids = run_route(logits, bias, top_k, renormalize=False, scale=1.0)
        truth, order = route_reference(logits, bias, top_k, False, 1.0, torch.float64)
        assert torch.equal(ids, order) and torch.allclose(weights.double(), truth, rtol=1e-6)
    return {}


def case_qk_rms_partial_and_apply() -> dict:
    worst = 0.0
    for dtype, weights_dtype, (q_size, kv_size, tokens) in product(
        DTYPES, (torch.float32, torch.bfloat16), ((1536, 256, 1), (768, 128, 4), (160, 32, 64))
    ):
        shards = [torch.randn(tokens, q_size + 2 * kv_size).to(dtype) for _ in range(2)]
        weights = [(torch.rand(q_size).to(weights_dtype), torch.rand(kv_size).to(weights_dtype)) for _ in shards]
        truth = rms_reference(shards, [w[0] for w in weights], [w[1] for w in weights], q_size, kv_size, 1e-6)
        held = [device().tensor(shard) for shard in shards]
        sums = [poisoned(tokens, 2, dtype=torch.float32) for _ in shards]
        for qkv, out in zip(held, sums):
            twin(Partial).run(qkv, q_size=q_size, kv_size=kv_size, out=out)
        device().wait()
        total = device().tensor(sums[0] + sums[1])  # the all-reduce
        for qkv, (q_weight, k_weight), (q, k), shard in zip(held, weights, truth, shards):
            q_out, k_out = qkv[:, :q_size], qkv[:, q_size : q_size + kv_size]  # in place
            twin(Rms).run(
                qkv, total, device().tensor(q_weight), device().tensor(k_weight), q_size=q_size, kv_size=kv_size,
                eps=1e-6, world_size=2, q_out=q_out, k_out=k_out,
            )  # fmt: skip
            device().wait()
            error = max(relative_error(q_out, q), relative_error(k_out, k))
            assert error <= TOLERANCE[dtype], (dtype, q_size, error)
            assert torch.equal(qkv[:, q_size + kv_size :], shard[:, q_size + kv_size :])
            worst = max(worst, error / TOLERANCE[dtype])
    return {"worst error / limit": worst}


def case_host_code_a_layer() -> dict:
    """Ours with the launches left out, and the OpenCL submit, in us."""
    case = MoeCase(1, 8, 8, 256, 128, 64)
    given = usm(moe_inputs(case, torch.float16))
    x, w13, w13_scale, w2, w2_scale, weights, ids = given.values()
    out, work = poisoned(1, 256, dtype=torch.float16), poisoned(1 << 16, dtype=torch.uint8)
    backend = twin(Moe)
    bound = backend.bind(w13, w13_scale, w2, w2_scale, nibble="u4", group_size=64, top_k=8, dtype=torch.float16)
    bound(x, weights, ids, out, work)
    device().wait()
    whole = out.clone()
    device().library.skipped()
    figures = {
        "bound": opencl_probe.host_us(device(), lambda: bound(x, weights, ids, out, work)),
        "run": opencl_probe.host_us(
            device(), lambda: backend.run(*given.values(), **settings(case), out=out, workspace=work)
        ),
    }
    assert device().library.skipped() == 2 * 2 * 7 * 1000, "two launches a call were to be left out"
    out.fill_(0)
    figures["submit"] = opencl_probe.submit_us(device(), lambda: bound(x, weights, ids, out, work))
    device().wait()
    assert torch.equal(out, whole), "after measuring, launches must launch again"
    return figures


def case_a_captured_graph_sees_new_inputs_and_never_a_freed_workspace() -> dict:
    """Capture, replay with changed inputs, grow the workspace, replay again; each equal to the eager result."""
    case = MoeCase(2, 8, 4, 256, 128, 64)
    first, second, third = (moe_inputs(case, torch.float16, seed=seed) for seed in (1, 2, 3))
    held = usm(first)
    out = poisoned(2, 256, dtype=torch.float16)
    space = Workspace("cpu")
    small = space.get(4 * 2 * 4 * 128 + 64)
    aligned = small[-small.data_ptr() % 64 :]
    backend = twin(Moe)
    library, queue = device().library, device().queue
    backend.run(*held.values(), **settings(case), out=out, workspace=aligned)  # warm: the plan is made
    library.trace_clear()
    library.trace(True)
    replay = library.graph(queue, lambda: backend.run(*held.values(), **settings(case), out=out, workspace=aligned))
    library.trace(False)
    recorded = library.trace_report()
    assert [kernel["recorded"] for kernel in recorded.values()] == [1, 1], recorded
    for changed in (first, second, third):
        if changed is third:
            large = space.get(1 << 20)
            large.fill_(0xCD)
        for name in ("x", "topk_ids", "topk_weights"):
            held[name].copy_(changed[name])
        out.fill_(float("nan"))
        replay()
        device().wait()
        now = dict(first) | {name: changed[name] for name in ("x", "topk_ids", "topk_weights")}
        assert torch.equal(out, run_moe(case, now))
    assert space.buffers[0].data_ptr() == small.data_ptr() and bool((large == 0xCD).all())
    return {}


def case_dynamo_takes_a_bound_layer_into_one_graph() -> dict:
    """What torch.compile sees of a layer: one node, its plan a constant, no break; two sizes of M, one result each."""
    case = MoeCase(2, 8, 2, 256, 128, 64)
    held = usm(moe_inputs(case, torch.float16))
    bound = twin(Moe).bind(
        held["w13"], held["w13_scale"], held["w2"], held["w2_scale"], nibble="u4", group_size=64, top_k=2,
        dtype=torch.float16,
    )  # fmt: skip
    work, seen = poisoned(1 << 14, dtype=torch.uint8), []

    def keep(graph, _):
        seen.append([str(node.target) for node in graph.graph.nodes if node.op == "call_function"])
        return graph.forward

    def layer(x, weights, ids, out):
        bound(x, weights, ids, out, work)
        return out

    compiled = torch.compile(layer, fullgraph=True, backend=keep, dynamic=True)
    for tokens in (2, 1):
        given = {name: held[name][:tokens] for name in ("x", "topk_weights", "topk_ids")}
        out = poisoned(2, 256, dtype=torch.float16)[:tokens]
        compiled(*given.values(), out)
        device().wait()
        assert torch.equal(out, run_moe(replace(case, tokens=tokens), dict(held) | given))
    assert all(targets == ["xpu_moe.launch_moe_u4.default"] for targets in seen), seen
    return {"graphs": len(seen)}


def case_the_c_implementation_is_there_for_xpu_tensors() -> dict:
    session.ready(device().library, "XPU")
    for name in operators.NAMES:
        assert torch._C._dispatch_has_kernel_for_dispatch_key(f"xpu_moe::{name}", "XPU"), name
    return {}


def case_which_libsycl() -> dict:
    built_for = device().library.built_for()[0]
    found = {"loaded": libsycl.require_loaded().major, "built_for": built_for}
    assert set(found.values()) == {MAJOR}
    return found


def case_trace_counts_every_kernel() -> dict:
    library = device().library
    library.trace_clear()
    library.trace(True)
    case = MoeCase(1, 8, 2, 256, 128, 64)
    given = moe_inputs(case, torch.float16)
    for _ in range(5):
        run_moe(case, given)
    library.trace(False)
    run_moe(case, given)
    found = library.trace_report()
    assert set(found) == {"moe_u4_up_f16_g64", "moe_u4_down_f16_g64"}, found
    for kernel in found.values():
        assert kernel["count"] == 5 and 0 < kernel["median_us"] <= kernel["p95_us"] <= kernel["max_us"], kernel
        assert kernel["clock"] == "host"
    return found


def case_esimd_is_refused_on_this_device_with_the_reason() -> dict:
    """By our own check before the driver is asked, and by the driver where the module reaches it."""
    refused = raised(KernelMissing, lambda: running().kernel(ESIMD, "moe_u4_f16_g64", "any", 17))
    assert "lacks the aspect ext_intel_esimd: its driver has no vector back end" in refused, refused
    answer = Moe(ESIMD, lambda index: running()).supports(ops.Case(
        "moe_u4", "xpu", dtype="float16", hidden_size=256, intermediate_size=128, num_experts=8, top_k=2, group_size=64,
        nibble="u4", activation="silu",
    ))  # fmt: skip
    assert not answer.ok and "vector back end" in answer.reason
    return {"refused": refused}


def case_a_torch_without_xpu_is_a_refusal_with_its_reason() -> dict:
    running()  # libsycl is loaded, and torch has no XPU
    answer = Moe(ESIMD, session.for_xpu).supports(ops.Case(
        "moe_u4", "xpu", dtype="float16", hidden_size=256, intermediate_size=128, num_experts=8, top_k=2, group_size=64,
        nibble="u4", activation="silu",
    ))  # fmt: skip
    assert not answer.ok and answer.reason.startswith("torch.xpu gives no queue for device 0: "), answer
    return {"reason": answer.reason}


def case_a_missing_kernel_and_a_stale_one_are_named() -> dict:
    missing = raised(KernelMissing, lambda: running().kernel(TWINS, "moe_u4", "moe_u4_up_f8_g64", 17))
    assert "sycl_twin kernel moe_u4_up_f8_g64: not in moe_u4.spv, which has moe_u4_down_bf16_g128" in missing, missing
    stale = raised(KernelMissing, lambda: running().kernel(TWINS, "qk_rms", "qk_rms_partial_f16", 9))
    assert "takes 6 arguments, wanted 9" in stale and "esimd build" in stale, stale
    module = raised(KernelMissing, lambda: running().kernel(TWINS, "no_such", "kernel", 1))
    assert "no_such.spv is missing" in module and "reinstall the wheel" in module, module
    return {"missing": missing}


def case_a_module_of_a_newer_spirv_version_or_a_damaged_one_never_reaches_the_driver() -> dict:
    good = TWINS.read("qk_rms")
    newer = good[:4] + (0x00010600).to_bytes(4, "little") + good[8:]
    with tempfile.TemporaryDirectory() as folder:
        room = replace(TWINS, name="newer", folder=Path(folder))
        row = {"spirv": hashlib.sha256(newer).hexdigest()}
        (room.folder / "manifest.json").write_text(json.dumps({"modules": {"qk_rms": row}}))
        (room.folder / "qk_rms.spv").write_bytes(newer)
        version = raised(SpirvError, lambda: running().kernel(room, "qk_rms", "qk_rms_partial_f16", 6))
        assert "newer module qk_rms.spv: got SPIR-V 1.6, wanted 1.0 to 1.4" in version, version
        (room.folder / "qk_rms.spv").write_bytes(good[: len(good) // 2])
        damaged = raised(KernelMissing, lambda: running().kernel(room, "qk_rms", "qk_rms_partial_f16", 6))
        assert "is not the file that manifest.json describes" in damaged and "build-twins" in damaged, damaged
    return {"version": version}


def case_what_the_driver_says_is_passed_on() -> dict:
    options = raised(
        RuntimeFailure, lambda: device().library.module(running().queue, TWINS.read("qk_rms"), "-no-such-option")
    )
    assert "the driver refuses the module" in options and "INVALID" in options, options
    return {"options": options[:200]}


def case_an_esimd_module_that_reaches_the_driver_is_refused_by_it() -> dict:
    image = ESIMD.read("route_sigmoid_topk")
    refused = raised(RuntimeFailure, lambda: device().library.module(running().queue, image, ""))
    assert "the driver refuses the module" in refused, refused
    return {"driver": refused[:300]}


def case_a_cpu_tensor_operator_is_a_real_torch_operator() -> dict:
    """Schema with its mutation marks, a fake that needs no device, and the C++ kernel under the dispatcher."""
    schema = str(torch.ops.xpu_moe.launch_moe_u4.default._schema)
    assert "Tensor(a!) out, Tensor(b!) workspace, int plan) -> ()" in schema, schema
    assert torch._C._dispatch_has_kernel_for_dispatch_key("xpu_moe::launch_moe_u4", "CPU")
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        tensor = torch.empty(2, 2)
        assert torch.ops.xpu_moe.launch_moe_u4(*[tensor] * 9, 5) is None
    return {"schema": schema}


def main() -> int:
    cases = {name.removeprefix("case_"): made for name, made in globals().items() if name.startswith("case_")}
    report = {}
    torch.set_num_threads(1)  # the truth is small work: threads that spin for each other cost more than they bring
    for name in [name for name in sys.argv[1:] if not name.startswith("-")] or cases:
        start = time.perf_counter()
        torch.manual_seed(0)  # the same draws whichever cases ran before
        try:
            report[name] = cases[name]()
        except Exception:
            report[name] = {"failed": traceback.format_exc()}
        print(f"{time.perf_counter() - start:6.1f} s {name}", file=sys.stderr, flush=True)
    print(json.dumps(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
