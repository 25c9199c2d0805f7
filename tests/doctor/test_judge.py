"""judge never raises, says nothing about what is absent, and lets no foreign text do harm."""

from __future__ import annotations

import json
import string

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.doctor.variants import B70, CASES, changed, env, healthy
from xpu_moe.doctor import judge, worst
from xpu_moe.doctor.facts import Facts
from xpu_moe.doctor.seen import seen
from xpu_moe.doctor.text import clean, quoted

RECORDED = [json.loads(file.read_text())["facts"] for file in sorted((CASES / "facts").glob("*.json"))]
_ODD = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20), st.just(10**400), st.just(-(10**400)),
    st.lists(st.one_of(st.none(), st.integers(), st.text(max_size=5)), max_size=3),
    st.dictionaries(st.text(max_size=5), st.integers(), max_size=2),
)  # fmt: skip
_WORDS = st.sampled_from(
    ["auto", "xpu", "cuda", "cpu", "fp8", "TRITON_ATTN", "mtp", "0,1", "level_zero:0", "true", "4G",
    "2021.14.0", "gptq",
     "0.21.0", "2.14.0+xpu", "6.8.0", "70.58.0", "0xe223", "minimax_m2", "ring:0-8;topo", "\x1b[31m", "lo", "²", "１"]
)  # fmt: skip


def _paths(value, path=()):
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from _paths(inner, (*path, key))


@pytest.mark.slow
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_facts_with_holes_and_wrong_types_never_raise(data):
    facts = json.loads(json.dumps(data.draw(st.sampled_from(RECORDED))))
    places = [path for path in _paths(facts) if path]
    for _ in range(data.draw(st.integers(1, 6))):
        *parents, last = data.draw(st.sampled_from(places))
        place = facts
        for part in parents:
            try:
                place = place[part]
            except (KeyError, IndexError, TypeError):
                place = None
        if not isinstance(place, (dict, list)) or (isinstance(place, list) and not isinstance(last, int)):
            continue
        if isinstance(place, list) and last >= len(place):
            continue
        place[last] = data.draw(st.one_of(_ODD, _WORDS))
    findings = judge(facts, strict=True)
    json.dumps([finding.as_dict() for finding in findings])


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(st.recursive(_ODD, lambda inner: st.dictionaries(
    st.sampled_from(["schema", "os", "gpus", "peer_access", "libraries", "python", "env", "model", "plan", "config",
                     "tp", "kernel", "packages", "quantization_config"]), inner | st.lists(inner, max_size=3),
    max_size=6), max_leaves=20))  # fmt: skip
def test_anything_at_all_never_raises(raw):
    assert worst(judge(raw, strict=True)) in (0, 1, 2)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.sampled_from([*sorted(RECORDED[0]["env"]), "CCL_ALLREDUCE", "CCL_WORKER_COUNT", "FI_PROVIDER",
       "CCL_SYCL_ALLREDUCE_SIMPLE_THRESHOLD", "CCL_LOCAL_SIZE", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES"]),
       st.text(max_size=30) | _WORDS, max_size=8))  # fmt: skip
def test_any_value_of_a_variable_never_raises(values):
    judge({**healthy(B70), "env": values}, strict=True)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.sampled_from(RECORDED), st.data())
def test_taking_facts_away_makes_no_error(facts, data):
    """An absent fact never produces an error: what is left may still be wrong, but only as it was before."""
    before = {(f.code, f.about) for f in judge(facts, strict=True) if f.severity == "error"}
    gone = data.draw(st.sampled_from(["os", "gpus", "peer_access", "libraries", "python", "env", "model"]))
    after = {(f.code, f.about) for f in judge({k: v for k, v in facts.items() if k != gone}, strict=True)
             if f.severity == "error"}  # fmt: skip
    assert after <= before | {("selection.too-few", "plan.tp")}


def test_no_facts_is_no_error():
    assert worst(judge({}, strict=True)) == 0
    assert worst(judge({"schema": 1}, strict=True)) == 0


def test_other_schema_is_said_and_judged():
    findings = judge({**healthy(B70), "schema": 2}, strict=True)
    assert [f.about for f in findings if f.code == "facts.schema"] == ["schema"]


EVIL = "\x1b[31m\x1b]0;title\x07<script>x</script>[bold]\u202e$(touch /tmp/pwned)`id`; rm -rf ~ '\"\n#"


def test_foreign_text_loses_escapes_and_markup_everywhere():
    facts = changed(B70, {
        "os/kernel": f"6.8.0{EVIL}", "gpus/0/name": f"Intel B70 {EVIL}", "gpus/0/bar_bytes": 1,
        "gpus/0/guc": f"70.58.0{EVIL}",
        **env(CCL_ZE_IPC_EXCHANGE=EVIL, FI_PROVIDER=EVIL, CCL_ALLREDUCE=EVIL, ZE_AFFINITY_MASK=EVIL, CCL_ROOT=EVIL),
        "plan/attention_backend": EVIL, "plan/tool_call_parser": EVIL, "plan/dtype": EVIL,
        "plan/speculative_method": EVIL,
        "model/tensor_names+": [f"model.layers.0.gate.{EVIL}.gate.qweight"],
    })  # fmt: skip
    findings = judge(facts, strict=True)
    assert len(findings) > 8
    for finding in findings:
        text = json.dumps(finding.as_dict(), ensure_ascii=False) + "\n".join(finding.lines())
        assert "\x1b" not in text and "\\u001b" not in text and "<script" not in text and "[bold]" not in text
        assert "\u202e" not in text and "\x07" not in text
        for word in ("$(touch", "`id`", "rm -rf"):
            assert word not in finding.fix or quoted(EVIL) in finding.fix


@given(st.text(alphabet=string.printable + "\x1b\x9b\u202e", max_size=200))
def test_clean_leaves_one_harmless_line(text):
    out = clean(text)
    assert "\x1b" not in out and "\n" not in out and "\u202e" not in out and out == out.strip()


def test_names_that_are_no_names_never_become_a_path():
    found = Facts.of({"env": {"CCL_X; rm -rf /": "1", "OK_1": "2"}})
    assert set(found.env or {}) == {"OK_1"}


def fix_of(facts, code):
    return next(f.fix for f in judge(facts, strict=True) if f.code == code)


def test_what_does_not_fit_is_answered_with_what_the_machine_has():
    free = {"env/ZE_AFFINITY_MASK": ..., "env/ONEAPI_DEVICE_SELECTOR": ...}
    assert (
        fix_of(changed(B70, {**free, "plan/tp": 1}), "card.too-small") == "--tensor-parallel-size 4 (4 cards are here)"
    )
    mixed = changed(B70, free)
    b580 = {**mixed["gpus"][0], "device_id": "0xe20b", "name": "Intel Arc B580", "memory_bytes": 12 << 30}
    mixed["gpus"] = [b580, *mixed["gpus"]]
    assert fix_of(mixed, "card.too-small").startswith("export ZE_AFFINITY_MASK=1,2,3,4 ")
    fp8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    fix = fix_of(changed(B70, {**free, "model/quantization_config": fp8, "model/tensor_names": ...}), "card.too-small")
    assert fix.startswith("take a 4-bit checkpoint") and fix.endswith("about 29 GiB a card")  # 28.06 by parts
    two = changed(B70, {**free, "plan/tp": 2})
    two["gpus"] = two["gpus"][:2]
    assert fix_of(two, "card.too-small").startswith("more or larger cards")
    three = changed(B70, free)
    three["gpus"] = three["gpus"][:3]
    assert "lspci" in fix_of(three, "selection.too-few") and fix_of(three, "selection.too-few").endswith("here: 1, 2")


@pytest.mark.parametrize("name", [
    "model.layers.0.self_attn.q_proj.qweight", "a\x1b[31mb", "model.hf_abcdefghij0123.x", "x" * 500, "a b\nc",
    "w[bold]", "ghp_abcdefghij0123", "eyJhbGciOiJ.eyJzdWIi",
])  # fmt: skip
def test_names_of_tensors_are_cleaned_whether_or_not_they_take_the_short_way(name):
    model = Facts.of({"model": {"tensor_names": [name]}}).model
    assert model is not None and model.tensor_names == {clean(name, 200)}


def test_a_card_of_another_vendor_is_not_counted_nor_numbered():
    """An NVIDIA card for the display before four B70: Level Zero numbers these from 0, and the model fits."""
    facts = healthy(B70)
    facts["gpus"].insert(0, {"name": "NVIDIA RTX A2000", "memory_bytes": 6 << 30, "display_attached": True})
    assert worst(judge(facts, strict=True)) == 0
    assert [gpu.position for gpu in Facts.of(facts).gpus] == [0, 1, 2, 3]
    facts["gpus"][2]["gemm_exact"] = False
    assert [f.about for f in judge(facts, strict=True) if f.severity == "error"] == ["gpus[2].gemm_exact"]
    facts["peer_access"] = [[a == b or 0 not in (a, b) for b in range(5)] for a in range(5)]
    assert Facts.of(facts).peers == ((True,) * 4,) * 4
    facts["gpus"].pop()
    assert any("4 ranks, 3 cards" in finding.title for finding in judge(facts, strict=True))


def test_a_card_without_a_driver_is_not_numbered_where_the_others_are_enough():
    facts = healthy(B70)
    facts["gpus"].insert(0, {**facts["gpus"][0], "driver": "vfio-pci"})
    assert [gpu.place for gpu in Facts.of(facts).gpus] == [1, 2, 3, 4]
    assert [(f.severity, f.about) for f in judge(facts) if f.severity != "info"] == [("warn", "gpus[0].driver")]


def test_what_was_looked_at_is_told():
    assert seen(healthy(B70)).startswith("4 x Intel(R) Arc(TM) Pro B70 Graphics, kernel 6.17.0-23-generic, Python 3.12")
    assert seen({}) == "cards unknown; no plan; no model" == seen(None)
    assert seen({"gpus": [], "plan": {}}) == "no Intel or NVIDIA card; plan for any device; no model"


@pytest.mark.parametrize(
    ("name", "value"), [("tp", "4"), ("tp", 0), ("tensor_parallel_size", 4), ("enforce_eager", "yes")]
)
def test_a_plans_value_that_no_rule_sees_is_warned_of(name, value):
    found = {f.about: f.severity for f in judge(changed(B70, {f"plan/{name}": value}), strict=True)}
    assert found[f"plan.{name}"] == "warn"


@pytest.mark.parametrize(
    ("pci", "shown"), [("0000:0c:00.0", "echo 0000:0c:00.0 |"), ("x; reboot", "echo 0000:BUS:00.0 |")]
)
def test_a_card_that_virtual_machines_hold_is_told_how_to_come_back(pci, shown):
    facts = changed(B70, {"gpus/3/driver": "vfio-pci", "gpus/3/pci": pci})
    (found,) = [f for f in judge(facts) if f.code == "card.driver"]
    assert found.severity == "error" and shown in found.fix and "drivers/xe/bind" in found.fix
