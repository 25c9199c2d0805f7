"""Plans: arguments in the order of the ABI, workspace sizes, identities that survive a restart."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from xpu_moe.esimd.kernels import abi
from xpu_moe.esimd.runtime import programs
from xpu_moe.esimd.runtime.plan import Argument, Kind, real
from xpu_moe.esimd.runtime.room import ESIMD, TWINS
from xpu_moe.esimd.twins import build

MOE = programs.Moe(
    torch.float16, 3072, 384, 256, 8, 128, "u4", "silu", torch.float16, weights_dtype=torch.float32,
    ids_dtype=torch.int64,
)  # fmt: skip
TWIN_SOURCES = Path(programs.__file__).parents[1] / "twins"


@pytest.mark.parametrize("room", [ESIMD, TWINS], ids=lambda room: room.name)
def test_a_plan_serves_one_to_sixty_four_tokens_with_up_and_down(room):
    plan = programs.moe_plan(MOE, room, "xpu:0")
    assert sorted(plan.programs) == list(range(1, 65))
    for program in plan.programs.values():
        assert [launch.kernel.split("_f16")[0] for launch in program.launches] == ["moe_u4_up", "moe_u4_down"]


@pytest.mark.parametrize("room", [ESIMD, TWINS], ids=lambda room: room.name)
def test_arguments_stand_where_the_abi_wants_them(room):
    plan = programs.moe_plan(MOE, room, "xpu:0")
    slots = [slot.name for slot in plan.slots]
    up, down = plan.programs[3].launches
    for launch, family in ((up, "moe_u4_up"), (down, "moe_u4_down")):
        by_name = dict(zip((argument.name for argument in abi.SIGNATURES[family]), launch.arguments))
        assert by_name["tokens"] == Argument(Kind.INT32, 3)
        assert by_name["intermediate_size"].value == 384 and by_name["num_experts"].value == 256
        assert by_name["flags"].value & abi.IDS_64 and by_name["flags"].value & abi.GATED
        assert slots[by_name["topk_ids"].value] == "topk_ids"
        assert slots[by_name["hidden"].value] == "workspace"
    assert [a.kind for a in up.arguments[4:6]] == [Kind.NULL, Kind.NULL]  # logits, bias


def test_a_routed_esimd_program_routes_in_up_and_a_twins_in_front():
    routed = replace(MOE, logits_dtype=torch.float32, bias_dtype=None, route_scale=2.5)
    up, down = programs.moe_plan(routed, ESIMD, "xpu:0").programs[2].launches
    by_name = dict(zip((argument.name for argument in abi.SIGNATURES["moe_u4_up"]), up.arguments))
    assert by_name["topk_ids"].kind == Kind.NULL and by_name["bias"].kind == Kind.NULL
    assert by_name["route_scale"] == real(2.5)
    given = dict(zip((argument.name for argument in abi.SIGNATURES["moe_u4_down"]), down.arguments))
    assert by_name["route_weights"] == given["topk_weights"] and by_name["route_ids"] == given["topk_ids"]
    first, *_ = programs.moe_plan(routed, TWINS, "xpu:0").programs[2].launches
    assert first.kernel == "route_sigmoid_topk"


def test_workspace_holds_hidden_vectors_and_for_a_routed_call_the_routes():
    assert programs.workspace_bytes(MOE, 3) == 4 * 3 * 8 * 384
    odd = replace(MOE, intermediate_size=32, top_k=1, group_size=32, logits_dtype=torch.float32)
    assert programs.workspace_bytes(odd, 1) == 128 + 8


def test_an_argument_that_is_missing_or_unknown_is_an_error():
    with pytest.raises(KeyError, match="qk_rms_partial"):
        programs.arguments("qk_rms_partial", {"qkv": Argument(Kind.NULL)})


def test_a_plans_identity_depends_on_the_case_alone():
    first, again = (programs.moe_plan(MOE, ESIMD, "xpu:0").identity for _ in range(2))
    assert first == again and 0 <= first < 2**63
    others = [
        programs.moe_plan(MOE, TWINS, "xpu:0"), programs.moe_plan(MOE, ESIMD, "xpu:1"),
        programs.moe_plan(replace(MOE, nibble="s4"), ESIMD, "xpu:0"),
    ]  # fmt: skip
    assert len({first, *(plan.identity for plan in others)}) == 4


@pytest.mark.parametrize("family", sorted(abi.SIGNATURES))
def test_the_twins_source_has_the_abis_argument_names_in_order(family):
    text = "".join(file.read_text() for file in sorted(TWIN_SOURCES.glob("*.[ch]pp")))
    found = re.search(rf"XM_TWIN {family}(?:_##NAME)?\((.*?)\)\s*(?:\\\s*)?\{{", text, re.S)
    assert found, f"no twin of {family}"
    names = [re.search(r"(\w+)\s*$", part.replace("\\", " ")).group(1) for part in found.group(1).split(",")]
    assert names == [argument.name for argument in abi.SIGNATURES[family]]


def test_the_committed_twins_are_fresh():
    assert build.stale() == {}, "run `python -m xpu_moe.esimd build-twins`"


def test_a_changed_source_makes_the_twins_stale(monkeypatch):
    monkeypatch.setattr(build, "FLAGS", (*build.FLAGS, "-DOTHER"))
    assert build.stale() == dict.fromkeys(build.MODULES, "the sources changed after it was built")
