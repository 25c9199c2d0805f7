"""docs/doctor.md is what the rules say."""

from __future__ import annotations

from xpu_moe.doctor import document
from xpu_moe.doctor.rules import RULES


def test_page_is_fresh():
    assert document.main(["--check"]) == 0


def test_page_names_every_row():
    text = document.PAGE.read_text(encoding="utf-8")
    assert all(f"`{row.code}`" in text for rule in RULES for row in rule.rows)


def test_codes_are_unique():
    codes = [row.code for rule in RULES for row in rule.rows]
    assert len(codes) == len(set(codes)) > 80
