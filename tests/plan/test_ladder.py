"""The ladder of four B70: what was blocked is refused or warned about before the load, the best row is our profile."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.doctor.rules_of_a_case import under
from tests.doctor.variants import B70, changed, env, plan
from xpu_moe.doctor import judge
from xpu_moe.plan.profiles import PROFILES

ROWS = {
    row["id"]: row
    for row in json.loads((Path(__file__).parent / "data" / "b70_minimax_ladder.json").read_text())["rows"]
}
PUBLIC = json.loads((Path(__file__).parent / "data" / "b70_public_ladder.json").read_text())
BLOCKED = [name for name, row in ROWS.items() if row["verdict"] == "blocked"]
DTYPES = {"fp16": "float16", "bf16": "bfloat16"}
# what the evidence's columns cannot say, and where the finding is to be
ABOUT = {
    "xpu_graph_env": "plan.graph", "p2p_access_0": "env.CCL_TOPO_P2P_ACCESS", "graph_with_comm": "plan.graph",
    "graph_noop_comm_auto_kv": "plan", "no_chunked_prefill": "plan.enable_chunked_prefill",
    "ngram_gpu": "plan.speculative_method", "native_mtp": "plan.speculative_method", "dcp_2": "plan.dcp",
    "kv_fp8_inc": "plan.kv_cache_dtype", "torch_profiler": "plan.profiler",
}  # fmt: skip
MORE = {"no_chunked_prefill": plan(enable_chunked_prefill=False), "torch_profiler": plan(profiler="torch")}


def facts_of(row):
    """A healthy machine with the plan and the environment of a row."""
    changes = plan(
        tp=row["tp"], pp=row["pp"], dtype=DTYPES[row["act_dtype"]], max_model_len=row["max_model_len_tokens"],
        block_size=row["kv_block_size_tokens"], graph=row["graph"] != "off",
        kv_cache_memory_bytes=row["kv_cache_bytes"],
        kv_cache_dtype=row["kv_cache_dtype"], dcp=row["decode_context_parallel"], speculative_method=row["speculative"],
        enable_prefix_caching=row["prefix_caching"],
        attention_backend="TRITON_ATTN" if "triton" in row["attention_backend"] else None,
    )  # fmt: skip
    changes["python/packages/vllm"] = "0.20.1" if row["graph"] != "off" else "0.26.0"
    return changed(B70, {**changes, **env(**row["env"]), **MORE.get(row["id"], {})})


@pytest.mark.parametrize("name", BLOCKED)
def test_blocked_rows_are_refused_or_warned_about(name):
    findings = [f for f in judge(facts_of(ROWS[name]), strict=True) if f.severity != "info"]
    assert any(under(f.about, ABOUT[name]) and f.why for f in findings), findings


def test_all_blocked_rows_are_known_here():
    assert set(BLOCKED) == set(ABOUT) and len(BLOCKED) == 10


@pytest.mark.parametrize(
    ("name", "about"),
    [("u4_pp2_tp2", "plan.pp"), ("u4_max_len_1024", "plan.max_model_len"), ("u4_max_len_4096", "plan.max_model_len"),
     ("triton_attn", "plan.attention_backend"), ("kv_block_128", "plan.block_size"),
     ("fabric_vertex_0", "env.CCL_TOPO_FABRIC_VERTEX_CONNECTION_CHECK")],
)  # fmt: skip
def test_negative_rows_warn_with_their_figure(name, about):
    findings = [f for f in judge(facts_of(ROWS[name]), strict=True) if f.about == about]
    assert findings and findings[0].severity == "warn"
    assert any(
        figure in findings[0].why
        for figure in (f"{ROWS[name]['output_tok_per_s']:.1f}", f"{ROWS[name]['output_tok_per_s']:.2f}", "2.4 tok/s")
    )


@pytest.mark.parametrize("name", [n for n, r in ROWS.items() if r["verdict"] == "best"])
def test_best_rows_are_silent(name):
    row = ROWS[name]
    findings = [f for f in judge(facts_of(row), strict=True) if f.severity != "info"]
    assert not findings


def test_the_best_row_is_what_the_latency_profile_produces():
    best = max((row for row in ROWS.values() if row["output_tok_per_s"]), key=lambda row: row["output_tok_per_s"])
    settings = PROFILES["b70-tp4-latency"].plan()
    assert best["id"] == "u4_p512n512"
    assert settings == {
        **settings, "device": "xpu", "tp": best["tp"], "pp": best["pp"], "dtype": DTYPES[best["act_dtype"]],
        "max_model_len": best["max_model_len_tokens"], "block_size": best["kv_block_size_tokens"], "graph": False,
        "kv_cache_dtype": best["kv_cache_dtype"], "dcp": best["decode_context_parallel"], "speculative_method": None,
        "max_num_batched_tokens": 1024, "max_num_seqs": 1,
    }  # fmt: skip
    assert PROFILES["b70-tp4-latency"].points[0].tok_per_s == best["output_tok_per_s"]


@pytest.mark.parametrize("name", ["b70-tp4-latency", "b70-tp4-long"])
def test_profiles_without_graphs_are_healthy(name):
    profile = PROFILES[name]
    findings = judge(changed(B70, {f"plan/{key}": value for key, value in profile.settings.items()}), strict=True)
    assert not [f for f in findings if f.severity != "info"]


def test_the_graph_profile_is_the_public_serve_line():
    profile, args = PROFILES["b70-tp4-graph"], PUBLIC["promoted_serve_args"]
    settings = profile.settings
    assert not profile.proved
    assert settings["dtype"] == args["dtype"] and settings["tp"] == args["tensor_parallel"]
    assert settings["max_model_len"] == args["max_model_len_tokens"]
    assert settings["max_num_batched_tokens"] == args["max_num_batched_tokens"]
    assert settings["max_num_seqs"] == args["max_num_seqs"]
    assert settings["block_size"] == args["kv_block_size_tokens"]
    assert settings["enable_prefix_caching"] is args["prefix_caching"]
    assert dict(profile.compilation) == args["compilation_config"]
    assert "--no-async-scheduling" in profile.flags
    figures = {row["output_tok_per_s_precise"] for row in PUBLIC["rows"] if row["table"] == "ladder"}
    assert profile.points[0].tok_per_s in figures
