"""The recorded cases, and variants of them."""

from __future__ import annotations

import json
import time

import pytest

from tests.doctor.rules_of_a_case import check, loud
from tests.doctor.variants import CASES, HEALTHY, VARIANTS, changed
from xpu_moe.doctor import judge

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


@pytest.mark.parametrize(("name", "base", "changes", "severity", "about"), VARIANTS, ids=[v[0] for v in VARIANTS])
def test_variant_of_a_kind_is_found(name, base, changes, severity, about):
    check(judge(changed(base, changes), strict=True), severity, about)


@pytest.mark.parametrize(("name", "base", "changes"), HEALTHY, ids=[h[0] for h in HEALTHY])
def test_healthy_setting_is_silent(name, base, changes):
    findings = loud(judge(changed(base, changes), strict=True))
    assert not findings, [(f.severity, f.about, f.code, f.why) for f in findings]


def test_names_of_variants_are_unique():
    names = [variant[0] for variant in VARIANTS]
    assert len(set(names)) == len(names) >= 60


def test_judging_is_fast():
    facts = json.loads((CASES / "facts" / "tp8-int4-group-128.json").read_text())["facts"]
    start = time.perf_counter()
    for _ in range(20):
        judge(facts)
    assert (time.perf_counter() - start) / 20 < 0.05


def test_every_finding_says_what_to_do():
    for _, base, changes, _, _ in VARIANTS:
        for finding in judge(changed(base, changes), strict=True):
            assert all(finding.as_dict().values()), finding
            assert "{" not in finding.about + finding.title, finding
            assert finding.about not in ("env", "plan", "os", "model"), finding
