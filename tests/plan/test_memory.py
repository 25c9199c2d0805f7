"""KV arithmetic and weights: the published figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.plan.shapes_of_models import DEEPSEEK_V3, MINIMAX, MINIMAX_FP8, MINIMAX_INT4, QWEN3_8B, QWEN3_30B
from xpu_moe.plan.cards import BY_KEY, card_of
from xpu_moe.plan.memory import Request, kv_tokens, plan_memory
from xpu_moe.plan.picture import bar, png
from xpu_moe.plan.profiles import PROFILES
from xpu_moe.plan.quantization import quant_of
from xpu_moe.plan.shapes import shapes_of
from xpu_moe.plan.sizes import size

GIB = 1 << 30
DATA = Path(__file__).parent / "data"
POINTS = {row["id"]: row for row in json.loads((DATA / "kv_points.json").read_text())["rows"]}
M2 = shapes_of(MINIMAX_INT4)
B70 = BY_KEY["b70"]


def plan(**request):
    asked = Request(tp=4, **request)
    return plan_memory(M2, M2.weights_per_rank(4), B70, asked)


def test_bytes_of_a_token():
    row = POINTS["bytes_per_token_per_rank"]
    assert M2.kv_bytes_per_token(4) == row["expected"]["bytes_per_token"] == 63488


@pytest.mark.parametrize("name", [name for name, row in POINTS.items() if row["kind"] == "arithmetic"])
def test_arithmetic_points(name):
    row = POINTS[name]
    given, wanted, slack = row["inputs"], row["expected"], row["tolerance_abs"]
    token = given.get("bytes_per_token", M2.kv_bytes_per_token(4))
    tokens = kv_tokens(given.get("kv_cache_bytes", 0), token, given.get("block_tokens", 1))
    need = given.get("tokens", 0) * token
    got = {
        "bytes_per_token": M2.kv_bytes_per_token(given.get("tp", 4)),
        "bytes_per_block": token * given.get("block_tokens", 1),
        "blocks": tokens // given.get("block_tokens", 1),
        "tokens": tokens,
        "bytes": need,
        "gib": need / GIB,
        "fits": given.get("available_gib", 0) * GIB >= need,
    }
    for key, value in wanted.items():
        assert got[key] == pytest.approx(value, abs=slack.get(key, 0)), (name, key)


@pytest.mark.parametrize(
    "name", [name for name, row in POINTS.items() if row["kind"] in ("reported_pair", "block_multiple")]
)
def test_reported_token_counts_are_whole_blocks_of_our_size(name):
    row = POINTS[name]
    block = row["inputs"]["block_tokens"]
    tokens = row["inputs"].get("tokens", row["expected"].get("tokens"))
    assert tokens % block == 0
    assert tokens * M2.kv_bytes_per_token(4) / GIB == pytest.approx(
        row["expected"].get("gib", row["expected"].get("gib_of_tokens")), abs=0.005
    )
    available = row["inputs"].get("available_kv_gib")
    if available:
        assert kv_tokens(int(available * GIB), 63488, block) == pytest.approx(tokens, abs=block)


def test_256_mib_hold_4224_tokens():
    found = plan(kv_bytes=size("256M"), block_size=64, max_model_len=2048)
    assert (found.kv_tokens, found.kv_bytes_per_token, found.sequences, found.fits) == (4224, 63488, 2, True)


def test_weights_of_a_card_from_shapes():
    measured = POINTS["weights_per_card"]["expected"]["weights_gib"]
    assert M2.weights_per_rank(4).total / GIB == pytest.approx(measured, rel=0.03)
    assert M2.weights_per_rank(2, pp=2).total / GIB == pytest.approx(measured, rel=0.03)
    assert M2.expert_bytes(4) == 1_824_768
    assert shapes_of(MINIMAX_FP8).expert_bytes(4) == 3_539_808


def test_the_automatic_size_is_near_the_reported_one():
    """1.02 GiB at 2048 tokens (vLLM's profile); the note's two other lengths follow no formula."""
    found = plan(max_model_len=2048, block_size=64)
    assert found.kv_bytes / GIB == pytest.approx(
        POINTS["available_at_max_len_2048"]["expected"]["available_kv_gib"], abs=0.1
    )


def test_graphs_leave_too_little_for_the_automatic_size():
    found = plan(max_model_len=2048, block_size=64, graph=True)
    row = POINTS["graph_memory"]["expected"]
    assert not found.fits and found.kv_bytes / GIB == pytest.approx(row["available_kv_gib"], abs=0.06)
    assert found.need_bytes / GIB == pytest.approx(row["required_kv_gib"], abs=0.005)
    assert plan(max_model_len=2048, graph=True, kv_bytes=size("256M")).fits


def test_what_does_not_fit_names_the_part():
    small = plan_memory(M2, M2.weights_per_rank(4), BY_KEY["b60"], Request(tp=4, max_model_len=2048))
    assert not small.fits and "weights of 28.1 GiB" in small.why
    long = plan(max_model_len=196608, kv_bytes=196608 * 63488)
    assert not long.fits and "too much" in long.why
    short = plan(max_model_len=2048, kv_bytes=64 << 20)
    assert not short.fits and "do not hold one sequence of 2048" in short.why


def test_whole_context_needs_11_6_gib():
    assert 196608 * M2.kv_bytes_per_token(4) / GIB == pytest.approx(11.6, abs=0.05)


def test_eight_bit_kv_doubles_the_tokens():
    assert M2.kv_bytes_per_token(4, kv_dtype="fp8") * 2 == 63488


def test_other_models():
    """Published parameter counts: Qwen3-8B 8.19e9, Qwen3-30B-A3B 30.5e9, DeepSeek-V3 671e9 (8-bit)."""
    assert shapes_of(QWEN3_8B).weights_per_rank(1).total / 2 == pytest.approx(8.19e9, rel=0.01)
    assert shapes_of(QWEN3_30B).weights_per_rank(1).total / 2 == pytest.approx(30.5e9, rel=0.01)
    deepseek = shapes_of(DEEPSEEK_V3)
    assert deepseek.weights_per_rank(1).total == pytest.approx(671e9, rel=0.03)
    assert deepseek.kv_bytes_per_token(8) == 61 * 576 * 2
    assert shapes_of(QWEN3_8B).kv_bytes_per_token(1) == 147_456
    assert shapes_of(QWEN3_8B).kv_bytes_per_token(16) == 147_456 // 8


def test_expert_parallel_keeps_the_bytes():
    whole, sliced = M2.weights_per_rank(4, expert_parallel=True), M2.weights_per_rank(4)
    assert whole.experts == pytest.approx(sliced.experts, rel=0.01)


@pytest.mark.parametrize(
    "bad", [{}, {"hidden_size": 1}, {**MINIMAX, "num_hidden_layers": "62"}, {**MINIMAX, "hidden_size": -1}]
)
def test_incomplete_configs_have_no_shapes(bad):
    assert shapes_of(bad) is None


@pytest.mark.parametrize(
    ("raw", "want"),
    [
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, (4, 128, "int")),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"g": {"weights": {"num_bits": 4, "group_size": 32}}},
            },
            (4, 32, "int"),
        ),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, (8, -1, "float")),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, (4, 128, "int")),
    ],
)
def test_quantisations(raw, want):
    quant = quant_of(raw)
    assert (quant.bits, quant.group, quant.number) == want


@pytest.mark.parametrize(
    ("text", "want"), [("256M", 268435456), ("256m", 256_000_000), ("4.5g", 4_500_000_000), ("4G", 4 << 30), ("7", 7)]
)
def test_sizes(text, want):
    assert size(text) == want


@pytest.mark.parametrize("text", ["4.5G", "4GiB", "-1", "", "1e9", "G", "9" * 30])
def test_sizes_refused(text):
    with pytest.raises(ValueError, match="size: got"):
        size(text)


@pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda profile: profile.name)
def test_named_launches_fit_their_card(profile):
    config = MINIMAX_FP8 if "fp8" in profile.name else MINIMAX_INT4
    shapes, settings = shapes_of(config), profile.settings
    request = Request(
        tp=settings["tp"], pp=settings["pp"], max_model_len=settings["max_model_len"],
        max_num_batched_tokens=settings["max_num_batched_tokens"], max_num_seqs=settings["max_num_seqs"],
        block_size=settings["block_size"], kv_bytes=settings.get("kv_cache_memory_bytes"), graph=settings["graph"],
        reserve=profile.reserve,
    )  # fmt: skip
    found = plan_memory(shapes, shapes.weights_per_rank(request.tp, request.pp), BY_KEY[profile.card], request)
    assert found.fits, found.why


def test_the_bar_shows_every_part():
    found = plan(max_model_len=2048, kv_bytes=size("256M"), graph=True)
    lines = bar(found)
    assert all(sign in lines[0] for sign in "EWKagr.") and len(lines[0].split("]")[0]) == 65
    assert "over by" in bar(plan(max_model_len=196608, kv_bytes=196608 * 63488))[0]


def test_the_picture_is_written(tmp_path):
    png(plan(max_model_len=2048), tmp_path / "card.png")
    assert (tmp_path / "card.png").read_bytes()[:4] == b"\x89PNG"


def test_cards_by_id_and_name():
    assert card_of("0xe223", None).key == "b70"
    assert card_of(None, "NVIDIA H200").key == "h200"
    assert card_of(None, "NVIDIA H20").key == "h20"
    assert card_of("0x9999", "Unknown") is None
