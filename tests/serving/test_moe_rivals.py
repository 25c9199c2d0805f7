"""Adapters to other projects' chains: what is asked of a release is checked before it is called."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

from xpu_moe.serving import moe_rivals
from xpu_moe.serving.moe_rivals import Needed, load

TABLE = (Needed("standin.moe", "Experts.apply", ("x", "workspace")), Needed("standin.moe", "kinds"))


@pytest.fixture
def standin(monkeypatch):
    """A package `standin` whose module `moe` the test fills."""
    package, module = ModuleType("standin"), ModuleType("standin.moe")
    package.__path__ = []  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "standin", package)
    monkeypatch.setitem(sys.modules, "standin.moe", module)
    monkeypatch.setattr(moe_rivals.importlib.util, "find_spec", lambda name: name == "standin" or None)
    return module


def test_only_what_is_absent_is_not_installed(monkeypatch):
    monkeypatch.setattr(moe_rivals.importlib.util, "find_spec", lambda name: None)
    tensor = torch.zeros(1, 2, 4, dtype=torch.uint8)
    assert load(TABLE) == "not installed"
    assert moe_rivals.marlin_int4(tensor, tensor, tensor, tensor, 128, 1) == "not installed"
    assert moe_rivals.triton_fp8_block([(tensor,) * 4], 2, True) == "not installed"
    assert moe_rivals.flashinfer_block([(tensor,) * 4]) == "not installed"


def test_a_release_that_takes_what_is_passed_is_bound(standin):
    standin.Experts = type("Experts", (), {"apply": lambda self, x, workspace, more=None: x})
    standin.kinds = SimpleNamespace()
    assert load(TABLE) == {"Experts.apply": standin.Experts.apply, "kinds": standin.kinds}


def test_a_release_that_lacks_an_argument_or_a_name_is_told_apart(standin):
    standin.Experts = type("Experts", (), {"apply": lambda self, x, space: x})
    standin.kinds = None
    assert load(TABLE) == "standin of unknown version: Experts.apply takes no workspace"
    standin.Experts.apply = lambda self, **anything: None
    assert not isinstance(load(TABLE), str)
    del standin.kinds
    assert "standin.moe.kinds: AttributeError: " in load(TABLE)


def test_an_import_that_breaks_shows_its_text(standin, monkeypatch):
    def broken(name):
        raise OSError("libcudart.so.13: cannot open shared object file")

    monkeypatch.setattr(moe_rivals.importlib, "import_module", broken)
    assert "OSError: libcudart.so.13: cannot open" in load(TABLE)


def test_words_hold_eight_values_of_k_lowest_first():
    codes = torch.randint(0, 16, (2, 3, 16), dtype=torch.uint8)  # [E, N, K]
    words = moe_rivals.gptq_words(codes[..., 0::2] | codes[..., 1::2] << 4)
    assert words.shape == (2, 2, 3) and words.is_contiguous()
    unpacked = torch.stack([(words >> (4 * i)) & 15 for i in range(8)], dim=2).flatten(1, 2)  # [E, K, N]
    assert torch.equal(unpacked.transpose(1, 2), codes.int())


def test_marlin_binds_the_first_layer_repacked_and_the_others_random(monkeypatch):
    passed, made = [], []

    def repack(b_q_weight, perm, size_k, size_n, num_bits):
        assert b_q_weight.shape == (2, size_k // 8, size_n) and perm.shape == (2, 0) and num_bits == 4
        made.append(torch.zeros(2, size_k // 16, size_n * 2, dtype=torch.int32))
        return made[-1]

    def permute(s, size_k, size_n, group_size):
        assert s.shape == (2, size_k // group_size, size_n) and s.dtype == torch.bfloat16
        return s

    def chain(hidden_states, moe_sum, **given):
        passed.append(given)
        return moe_sum(torch.ones(3, 2, 256), hidden_states, None, None)

    found = {
        "fused_marlin_moe": chain, "gptq_marlin_moe_repack": repack, "marlin_moe_permute_scales": permute,
        "moe_sum": lambda input, output: output.copy_(input.sum(1)),
        "marlin_make_workspace_new": lambda device, max_blocks_per_sm: torch.zeros(max_blocks_per_sm),
        "scalar_types": SimpleNamespace(uint4b8=SimpleNamespace(id=7)),
    }  # fmt: skip
    monkeypatch.setattr(moe_rivals, "_on_card", lambda needed, tensor: found)
    packed = (torch.zeros(2, 256, 128, dtype=torch.uint8), torch.zeros(2, 256, 64, dtype=torch.uint8))
    scales = (torch.ones(2, 256, 2).half(), torch.ones(2, 256, 1).half())
    runs = moe_rivals.marlin_int4(packed[0], scales[0], packed[1], scales[1], 128, 3)
    x = torch.zeros(3, 256)
    assert len(runs) == 3 and all(run(x, x, x) is x for run in runs) and (x == 2).all()
    assert passed[0]["w1"] is made[0] and passed[0]["w2"] is made[1] and len(made) == 2
    assert passed[1]["w1"].shape == made[0].shape and passed[1]["w1"].any() and passed[1]["w1"] is not passed[2]["w1"]
    assert {given["quant_type_id"] for given in passed} == {7} and passed[0]["workspace"] is passed[2]["workspace"]
