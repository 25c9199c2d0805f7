"""AutoRound/GPTQ packing to canonical rows, and what is refused."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from xpu_moe.formats import gptq, llm_scaler
from xpu_moe.formats.quantization import UnsupportedCheckpoint


def unpack_words(qweight: torch.Tensor) -> torch.Tensor:
    """int32 [K/8, N] -> codes [K, N], written from the format's description alone."""
    words, columns = qweight.shape
    codes = torch.empty(words * 8, columns, dtype=torch.int64)
    for k in range(words * 8):
        codes[k] = (qweight[k // 8].to(torch.int64) >> (4 * (k % 8))) & 15
    return codes


def unpack_rows(rows: torch.Tensor) -> torch.Tensor:
    """uint8 [N, K/2] -> codes [N, K]."""
    return torch.stack((rows & 15, rows >> 4), dim=-1).flatten(-2).to(torch.int64)


def random_words(*shape: int, seed: int = 0) -> torch.Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randint(-(2**31), 2**31 - 1, shape, dtype=torch.int64, generator=draw).to(torch.int32)


@given(st.integers(1, 12), st.integers(1, 40), st.integers(0, 1000))
@settings(max_examples=40, deadline=None)
def test_rows_hold_the_same_codes_in_order_of_k(words, columns, seed):
    qweight = random_words(words, columns, seed=seed)
    rows = gptq.rows_from_qweight(qweight)
    assert torch.equal(unpack_rows(rows), unpack_words(qweight).T)
    assert torch.equal(gptq.qweight_from_rows(rows), qweight)


def test_a_stack_is_turned_in_its_own_storage_with_two_experts_of_scratch(monkeypatch):
    qweight = random_words(5, 16, 24)
    wanted = torch.stack([gptq.rows_from_qweight(expert) for expert in qweight])
    expert_bytes = qweight[0].numel() * 4
    address, biggest = qweight.data_ptr(), 0
    kept = gptq.rows_from_qweight

    def watched(one: torch.Tensor) -> torch.Tensor:
        nonlocal biggest
        result = kept(one)
        biggest = max(biggest, one.numel() * 4 + result.numel())
        return result

    monkeypatch.setattr(gptq, "rows_from_qweight", watched)
    rows = gptq.stack_in_place(qweight)
    assert rows.data_ptr() == address and torch.equal(rows, wanted)
    assert biggest <= 2 * expert_bytes


def test_scales_are_turned_in_place_and_keep_every_bit():
    scales = torch.rand(3, 4, 6).half()
    wanted, address = scales.transpose(1, 2).clone(), scales.data_ptr()
    turned = gptq.scales_in_place(scales)
    assert turned.data_ptr() == address and torch.equal(turned, wanted)


@pytest.mark.parametrize("zero_point", (7, 8))
def test_both_zero_point_conventions_are_known(zero_point):
    word = int.from_bytes(bytes([zero_point * 0x11] * 4), "little", signed=True)
    good = torch.full((2, 4), word, dtype=torch.int32)
    gptq.check_symmetric("w1.qzeros", good, zero_point)
    with pytest.raises(UnsupportedCheckpoint, match=r"w1\.qzeros: zero point .* other zero-point convention"):
        gptq.check_symmetric("w1.qzeros", good, 15 - zero_point)


def test_one_real_zero_point_is_refused_by_name():
    zeros = torch.full((2, 4), 0x77777777, dtype=torch.int32)
    zeros[1, 2] = 0x77377777
    with pytest.raises(UnsupportedCheckpoint, match=r"e3\.w1\.qzeros: zero point 3 found, wanted 7"):
        gptq.check_symmetric("e3.w1.qzeros", zeros, 7)


def test_reordered_rows_are_refused_by_name():
    order = (torch.arange(128) // 32).to(torch.int32)
    gptq.check_order("w2.g_idx", order, 32)
    with pytest.raises(UnsupportedCheckpoint, match=r"w2\.g_idx: rows are reordered"):
        gptq.check_order("w2.g_idx", order.flip(0), 32)
    order[126], order[95] = 2, 3  # one pair of the last groups, far from the start
    with pytest.raises(UnsupportedCheckpoint, match=r"w2\.g_idx: rows are reordered"):
        gptq.check_order("w2.g_idx", order, 32)


def test_wrong_shapes_are_refused_with_both_shapes():
    qweight, scales = torch.zeros(16, 8, dtype=torch.int32), torch.zeros(1, 8).half()
    gptq.check_shapes("w1", qweight, scales, 8, 128, 128)
    with pytest.raises(UnsupportedCheckpoint, match=r"w1\.scales: got shape \(1, 8\), wanted \(2, 8\)"):
        gptq.check_shapes("w1", qweight, scales, 8, 128, 64)
    with pytest.raises(UnsupportedCheckpoint, match=r"w1\.qweight: got torch.int64, wanted torch.int32"):
        gptq.check_shapes("w1", qweight.long(), scales, 8, 128, 128)
    with pytest.raises(UnsupportedCheckpoint, match=r"w1\.scales: got torch.int32, wanted torch.float16 or"):
        gptq.check_shapes("w1", qweight, scales.int(), 8, 128, 128)


def test_a_strided_tensor_is_not_converted_in_place():
    strided = torch.zeros(2, 8, 16, dtype=torch.int32).transpose(1, 2)
    with pytest.raises(UnsupportedCheckpoint, match="qweight: got a strided tensor, wanted a contiguous one"):
        gptq.stack_in_place(strided)
    with pytest.raises(UnsupportedCheckpoint, match="scales: got a strided tensor, wanted a contiguous one"):
        gptq.scales_in_place(strided.half())


@pytest.mark.parametrize("group", (32, 64, 128))
def test_few_scale_bits_make_the_bf16_twin_exact(group):
    weight = torch.randn(24, 256, generator=torch.Generator().manual_seed(1))
    rows, scale, exact = gptq.quantize(weight, group, scale_bits=4)
    assert torch.equal(exact.to(torch.bfloat16).float(), exact)
    codes = unpack_rows(rows).float() - 8
    assert torch.equal(codes * scale.float().repeat_interleave(group, 1), exact)
    assert (exact - weight).abs().max() <= 0.6 * scale.float().max()


def test_llm_scalers_older_order_of_nibbles():
    codes = torch.randint(0, 16, (16, 5), dtype=torch.int64, generator=torch.Generator().manual_seed(2))  # [K, N]
    words = torch.zeros(2, 5, dtype=torch.int64)
    for position, k in enumerate((0, 2, 4, 6, 1, 3, 5, 7)):
        words |= codes.view(2, 8, 5)[:, k] << (4 * position)
    signed = torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)
    assert torch.equal(unpack_rows(llm_scaler.rows_from_k_major(signed)), codes.T)
