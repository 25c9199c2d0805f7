"""What the decode kernels can be built for, and that they do compile."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xpu_moe import toolenv
from xpu_moe.cuda import compiler
from xpu_moe.cuda.decode import launch
from xpu_moe.cuda.decode.plan import BLOCK_SHARED, BUCKETS, NoPlan, Shape, bucket, columns_are_tokens, plan

MINIMAX = Shape(4, 3072, 384, 256, 8, 128, "silu", True, "bfloat16", "float16", "float32", False)


@pytest.mark.parametrize("bits", (4, 8))
@pytest.mark.parametrize("inter", (384, 768, 1536))
@pytest.mark.parametrize("tokens", BUCKETS)
def test_minimax_fits_a_multiprocessor_with_stages_to_spare(bits, inter, tokens):
    found = plan(dataclasses.replace(MINIMAX, bits=bits, intermediate_size=inter), tokens, 132)
    assert found.shared_bytes <= BLOCK_SHARED and (found.stages >= 2 or found.max_tokens == 1)
    assert found.row_blocks * 8 * 132 >= 3072
    assert found.stage_experts * (inter // 128) <= found.consumers


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from((4, 8)), st.integers(1, 60), st.integers(1, 16), st.integers(1, 480), st.integers(1, 16),
    st.sampled_from((32, 64, 128)), st.sampled_from(BUCKETS), st.sampled_from((16, 78, 114, 132)),
)  # fmt: skip
def test_a_plan_is_sound_or_says_why_not(bits, hidden, inter, experts, top_k, group, tokens, blocks):
    shape = dataclasses.replace(
        MINIMAX, bits=bits, hidden_size=hidden * 128, intermediate_size=inter * 128, num_experts=experts, top_k=top_k,
        group_size=group,
    )  # fmt: skip
    try:
        found = plan(shape, tokens, blocks)
    except NoPlan as error:
        assert any(char.isdigit() for char in str(error))
        return
    assert found.shared_bytes <= BLOCK_SHARED and found.max_tokens >= tokens
    row_block = inter * 128 * 8 * bits // 8
    if found.max_tokens == 1:  # room for everything that a block may have
        units = -(-top_k * inter * 16 // blocks)
        assert found.stage_bytes >= units * 16 * hidden * 128 * bits // 8 + top_k * found.row_blocks * row_block
        assert found.stages == 1 and found.state_half == top_k * inter * 128 * 2
        return
    tokens = found.max_tokens
    assert found.depth <= found.stages <= found.consumers, "a consumer warp makes each stage's barrier"
    assert found.stages >= 2
    assert found.stage_bytes % 128 == 0
    assert found.stage_bytes >= max(16 * hidden * 128 * bits // 8, found.stage_experts * found.row_blocks * row_block)
    routes = tokens * top_k
    rows = min(routes, experts) * tokens if columns_are_tokens(tokens) else routes
    assert found.state_half == rows * inter * 128 * 2


def test_h_is_gathered_where_columns_are_tokens_and_a_stage_of_it_has_a_thread_for_each_value():
    for bits in (4, 8):
        for inter in (128, 256, 384, 768, 1536):
            shape = dataclasses.replace(MINIMAX, bits=bits, intermediate_size=inter)
            few, many = plan(shape, 4, 132), plan(shape, 16, 132)
            assert (few.gatherers > 0, many.gatherers) == (True, 0)
            assert few.finishers + few.gatherers >= 3 and many.finishers == 3, "three warps have work at the start"
            if bits == 4:
                assert few.stage_experts * inter // 8 <= few.gatherers * 32
            # 65,536 registers, dealt out to four warps at a time: what is left for a thread
            warps = -(-few.threads // 128) * 4
            assert 65536 // (warps * 32) // 8 * 8 >= (96 if bits == 4 else 128)


def test_one_token_has_a_kernel_of_its_own_where_its_weights_fit_into_shared_memory():
    found = {
        (bits, inter): plan(dataclasses.replace(MINIMAX, bits=bits, intermediate_size=inter), 1, 132).max_tokens
        for bits in (4, 8)
        for inter in (128, 384, 512, 1536)
    }
    assert found == {
        (4, 128): 1, (4, 384): 1, (4, 512): 1, (4, 1536): 4, (8, 128): 1, (8, 384): 1, (8, 512): 4, (8, 1536): 4,
    }  # fmt: skip
    more = plan(dataclasses.replace(MINIMAX, intermediate_size=1536), 1, 132)
    assert more == plan(dataclasses.replace(MINIMAX, intermediate_size=1536), 4, 132), "one variant serves both"


def test_which_sizes_have_tokens_as_columns():
    assert [columns_are_tokens(bucket(tokens)) for tokens in (1, 4, 5, 8, 9, 16, 17, 64)] == [True] * 2 + [False] * 6


def test_where_shared_memory_is_short_fewer_stages_of_h_are_held_and_fewer_experts_make_a_stage():
    fp8 = dataclasses.replace(MINIMAX, bits=8, scale="float32")
    found = {
        inter: plan(dataclasses.replace(fp8, hidden_size=6144, intermediate_size=inter), 4, 132) for inter in (256, 640)
    }
    assert {inter: (p.hidden_buffers, p.stage_experts) for inter, p in found.items()} == {256: (1, 5), 640: (1, 2)}
    roomy = plan(MINIMAX, 4, 132)
    assert (roomy.hidden_buffers, roomy.stage_experts, roomy.stages) == (3, 4, 6)


def test_the_headers_explain_every_define_and_no_other():
    text = (Path(launch.__file__).parent / "shape.cuh").read_text().split("#pragma once")[0]
    explained = {name for line in re.findall(r"^//   (\S.*?)  ", text, re.M) for name in line.split(", ")}
    assert explained == dict(launch.unit(plan(MINIMAX, 4, 132), trace=True).defines).keys()


def test_refusals_name_the_size():
    for change, words in (
        ({"hidden_size": 3000}, "hidden_size 3000: wanted a multiple of 128"),
        ({"intermediate_size": 192}, "intermediate_size 192: wanted a multiple of 128"),
        ({"num_experts": 600}, "num_experts 600: at most 512"),
        ({"group_size": 16}, "group_size 16: wanted 32, 64 or 128"),
        ({"intermediate_size": 2048}, "intermediate_size 2048: at most 1536"),
    ):
        with pytest.raises(NoPlan, match=words):
            plan(dataclasses.replace(MINIMAX, **change), 16, 132)
    with pytest.raises(NoPlan, match="tokens 65: the decode kernel takes at most 64"):
        bucket(65)


@pytest.mark.skipif(not compiler.available(), reason="neither NVRTC nor nvcc is installed here")
@pytest.mark.slow
@pytest.mark.parametrize("bits", (4, 8))
@pytest.mark.parametrize("tokens", (4, 64))
def test_the_kernels_compile_for_hopper(bits, tokens):
    shape = dataclasses.replace(MINIMAX, bits=bits, scale="float16" if bits == 4 else "float32")
    code = compiler.compile_now(launch.unit(plan(shape, tokens, 132)), "sm_90a")
    assert code[:4] == b"\x7fELF" and b"moe_decode" in code


@pytest.mark.skipif(not compiler.available(), reason="neither NVRTC nor nvcc is installed here")
@pytest.mark.soak
@pytest.mark.parametrize(
    "activation, group, dtype",
    (("relu2", 32, "float16"), ("relu2_no_mul", 64, "bfloat16"), ("silu_no_mul", 32, "bfloat16")),
)
def test_every_branch_compiles(activation, group, dtype):
    shape = dataclasses.replace(
        MINIMAX, hidden_size=384, intermediate_size=256, num_experts=16, top_k=3, activation=activation,
        gated=not activation.endswith("no_mul"), group_size=group, dtype=dtype, scale="float32", route_weight=dtype,
        wide_ids=True,
    )  # fmt: skip
    for tokens in BUCKETS:
        assert compiler.compile_now(launch.unit(plan(shape, tokens, 132)), "sm_90a")[:4] == b"\x7fELF"


@pytest.mark.soak
def test_nvrtc_alone_compiles_them(monkeypatch):
    """A machine without nvcc: the library that torch's CUDA build brings is enough."""
    root = toolenv.overlay("nvrtc", ["nvidia-cuda-nvrtc==13.0.88"])
    library = next(file for file in root.rglob("libnvrtc.so.*") if "alt" not in file.name)
    monkeypatch.setattr(compiler, "nvrtc_library", lambda: str(library))
    monkeypatch.setattr(compiler, "nvcc_path", lambda: None)
    for bits in (4, 8):
        shape = dataclasses.replace(MINIMAX, bits=bits, scale="float16" if bits == 4 else "float32")
        assert compiler.compile_now(launch.unit(plan(shape, 16, 132)), "sm_90a")[:4] == b"\x7fELF"
