"""The recorded cases, and variants of them."""

from __future__ import annotations

import json
import time

import pytest

from tests.doctor.outsiders import FAULTS, QUIET
from tests.doctor.rules_of_a_case import check, loud
from tests.doctor.variants import CASES, HEALTHY, VARIANTS, changed
from xpu_moe.doctor import judge

EVERY_FAULT = [*VARIANTS, *FAULTS]
RECORDED = sorted((CASES / "facts").glob("*.json"))


@pytest.mark.parametrize("file", RECORDED, ids=lambda file: file.stem)
def test_recorded_case_is_judged_as_expected(file):
    case = json.loads(file.read_text())
    findings = judge(case["facts"], strict=True)
    if case.get("expect_none"):
        assert not loud(findings), [(f.severity, f.about, f.title) for f in loud(findings)]
    for wanted in case["expect"]:
        check(findings, wanted["severity"], wanted["about"])


def test_the_recorded_cases_are_all_here():
    assert len(RECORDED) == 65


@pytest.mark.parametrize(("name", "base", "changes", "severity", "about"), EVERY_FAULT, ids=[v[0] for v in EVERY_FAULT])
def test_variant_of_a_kind_is_found(name, base, changes, severity, about):
    check(judge(changed(base, changes), strict=True), severity, about)


@pytest.mark.parametrize(("name", "base", "changes"), [*HEALTHY, *QUIET], ids=[h[0] for h in [*HEALTHY, *QUIET]])
def test_healthy_setting_is_silent(name, base, changes):
    findings = loud(judge(changed(base, changes), strict=True))
    assert not findings, [(f.severity, f.about, f.code, f.why) for f in findings]


def test_names_of_variants_are_unique():
    names = [variant[0] for variant in EVERY_FAULT]
    assert len(set(names)) == len(names) >= 250


def _paths(part, path=()):
    """Every key of nested objects, cards and libraries included."""
    if isinstance(part, dict):
        for key, inner in part.items():
            yield (*path, key)
            yield from _paths(inner, (*path, key))
    elif isinstance(part, list) and path[0] in ("gpus", "libraries"):
        for place, inner in enumerate(part):
            yield from _paths(inner, (*path, place))


@pytest.mark.parametrize("file", [f for f in RECORDED if f.stem.startswith("healthy")], ids=lambda file: file.stem)
def test_a_fact_that_is_absent_or_null_makes_no_error(file):
    text = json.dumps(json.loads(file.read_text())["facts"])
    paths = list(_paths(json.loads(text)))
    for *parents, last in paths:
        for gone in (True, False):
            facts = json.loads(text)
            place = facts
            for part in parents:
                place = place[part]
            if gone:
                del place[last]
            else:
                place[last] = None
            errors = [f.about for f in judge(facts, strict=True) if f.severity == "error"]
            assert not errors, (*parents, last, gone, errors)
    assert len(paths) >= 7


def test_judging_is_fast():
    facts = json.loads((CASES / "facts" / "tp8-int4-group-128.json").read_text())["facts"]
    start = time.process_time()
    for _ in range(20):
        judge(facts)
    assert (time.process_time() - start) / 20 < 0.05


def test_every_finding_says_what_to_do():
    for _, base, changes, _, _ in VARIANTS:
        for finding in judge(changed(base, changes), strict=True):
            assert all(finding.as_dict().values()), finding
            assert "{" not in finding.about + finding.title, finding
            assert finding.about not in ("env", "plan", "os", "model"), finding
