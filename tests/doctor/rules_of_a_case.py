"""What a recorded case demands: the expected findings, and no others above info than it allows."""

from __future__ import annotations

from xpu_moe.doctor.finding import ORDER, Finding


def under(path: str, about: str) -> bool:
    """Does `path` lie at or below `about`? `gpus[1].bar_bytes` lies under `gpus`, `os.shm_bytes` under `os`."""
    return path == about or path.startswith((about + ".", about + "["))


def loud(findings: list[Finding]) -> list[Finding]:
    """Errors and warnings."""
    return [finding for finding in findings if finding.severity != "info"]


def check(findings: list[Finding], severity: str, about: str) -> None:
    """The expected finding is there; no other error, at most one other warning."""
    said = [(f.severity, f.about, f.code) for f in loud(findings)]
    hits = [f for f in loud(findings) if under(f.about, about) and ORDER[f.severity] <= ORDER[severity]]
    assert hits, f"wanted {severity} about {about}, got {said}"
    others = [f for f in loud(findings) if not under(f.about, about)]
    assert not [f for f in others if f.severity == "error"], said
    assert len(others) <= 1, said
