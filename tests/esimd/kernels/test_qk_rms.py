"""Q/K RMS norm by the ESIMD source: sums of this rank's slice, then scale by the sums over all ranks."""

from __future__ import annotations

import pytest
import torch

from xpu_moe.esimd.host import emulate

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("q_size", "kv_size", "tokens"), [(1536, 256, 1), (768, 128, 3), (96, 32, 5), (6144, 1024, 2)])
@pytest.mark.parametrize("weights_dtype", [torch.float32, torch.bfloat16], ids=str)
def test_against_float64(q_size, kv_size, tokens, dtype, weights_dtype):
    draw = torch.Generator().manual_seed(q_size + tokens)
    world_size, eps = 4, 1e-6
    qkv = torch.randn(tokens, q_size + 2 * kv_size + 32, generator=draw).to(dtype)[:, : q_size + 2 * kv_size]
    q_weight = (torch.rand(q_size, generator=draw) + 0.5).to(weights_dtype)
    k_weight = (torch.rand(kv_size, generator=draw) + 0.5).to(weights_dtype)
    packed = qkv.contiguous()
    sums = torch.from_numpy(emulate.qk_rms_partial(packed, q_size, kv_size))
    q, k = packed[:, :q_size].double(), packed[:, q_size : q_size + kv_size].double()
    wanted = torch.stack((q.square().sum(1), k.square().sum(1)), 1)
    assert torch.allclose(sums.double(), wanted, rtol=1e-5)
    total = sums * 1.7 * world_size  # as an all-reduce would leave it
    for inplace in (False, True):
        source = packed.clone()
        got_q, got_k = emulate.qk_rms_apply(
            source, total, q_weight, k_weight, q_size, kv_size, eps, world_size, inplace=inplace
        )
        for got, part, weight, column in ((got_q, q, q_weight, 0), (got_k, k, k_weight, 1)):
            mean = total[:, column].double() / (part.shape[1] * world_size)
            truth = part * torch.rsqrt(mean + eps).unsqueeze(1) * weight.double()
            step = 2.0**-11 if dtype is torch.float16 else 2.0**-8
            assert ((torch.from_numpy(got).double() - truth).abs() <= truth.abs() * step * 1.05 + 1e-7).all()
        assert torch.equal(source[:, q_size + kv_size :], packed[:, q_size + kv_size :])  # V is untouched
