"""Launch shapes and the table of argument lists: formulas, no compiler."""

from __future__ import annotations

import re

import pytest

from xpu_moe.esimd.kernels import abi, instances, launch


def test_flag_bits_are_the_same_in_cpp_and_python():
    text = (instances.FOLDER / "abi.hpp").read_text()
    found = {name: eval(value) for name, value in re.findall(r"constexpr int (\w+) = ([\d <]+);", text)}
    assert len(found) == 13
    assert found == {name: getattr(abi, name) for name in found}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("tokens", [1, 2, 3, 4, 5, 8, 64])
@pytest.mark.parametrize(
    ("inter", "group"), [(1536, 128), (768, 128), (384, 128), (192, 64), (192, 32), (128, 128), (96, 32)]
)
def test_every_launch_names_an_instance_that_exists(dtype, tokens, inter, group):
    known = {i.name: m.name for m in instances.modules().values() for i in m.instances}
    for shape in (
        launch.up(dtype, tokens, 3072, inter, 8, group),
        launch.up(dtype, tokens, 128, inter, 8, group, gated=False),
        launch.down(dtype, tokens, 3072, inter, 8, group),
        launch.qk_partial(dtype, tokens),
        launch.qk_apply(dtype, tokens, 1536, 256),
        launch.route(tokens),
    ):
        assert known[shape.kernel] == shape.module
        assert all(n >= 1 for n in shape.groups + shape.local)
        assert shape.local[2] <= 8


def test_m1_tp4_fills_the_card():
    """Arc Pro B70: 256 vector engines x 8 threads = 2048."""
    assert launch.up("float16", 1, 3072, 384, 8, 128).threads >= 2048
    assert launch.down("float16", 1, 3072, 384, 8, 128).threads >= 2048


@pytest.mark.parametrize("inter", [96, 192, 384, 768, 1536])
def test_up_covers_every_pair_of_rows_once(inter):
    for tokens in (1, 3, 9):
        shape = launch.up("float16", tokens, 3072, inter, 8, 32)
        tile = 1 if tokens == 1 else 4
        assert shape.groups[2] * (launch.UP_LOCAL // shape.split) == inter
        assert shape.groups[0] * tile >= tokens
        assert shape.groups[1] == tile * 8


def test_hidden_position_is_a_permutation_that_parts_even_and_odd():
    places = [launch.hidden_position(i) for i in range(96)]
    assert sorted(places) == list(range(96))
    assert places[:4] == [0, 16, 1, 17] and places[32] == 32


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"dtype": "float32"}, "activations are float32"),
        ({"group_size": 16}, "group_size 16"),
        ({"intermediate_size": 192}, "intermediate_size 192 is not a multiple of group_size 128"),
        ({"hidden_size": 3000}, "hidden_size 3000 is not a multiple"),
        ({"top_k": 17}, "top_k 17, wanted 1..16"),
        ({"tokens": 65}, "65 tokens"),
        ({"num_experts": 29128}, "row offsets leave 32 bits"),  # 384 * 3072 / 16 = 73728 an expert, 2^31 in all
        ({"num_experts": 0}, "num_experts 0"),
    ],
)
def test_unsupported_says_why(change, words):
    case = {
        "dtype": "float16", "tokens": 1, "hidden_size": 3072, "intermediate_size": 384, "num_experts": 256, "top_k": 8,
        "group_size": 128,
    }  # fmt: skip
    assert launch.unsupported(**case) is None
    assert words in launch.unsupported(**case | change)


def test_the_last_case_below_the_limit_of_row_offsets_is_served():
    assert launch.unsupported("float16", 64, 3072, 384, 29127, 16, 128) is None


def test_a_split_that_fills_no_better_is_not_taken():
    """1700 threads fill 83 % of a wave, 3400 fill 83 % of two: one thread a pair."""
    assert launch.up_split(1, 1700, 2) == 1
    assert launch.up_split(1, 1700, 8) == 8


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match="no kernel knows 'u5'"):
        launch.flags(nibble="u5")
