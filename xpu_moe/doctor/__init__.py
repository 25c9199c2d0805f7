"""What is wrong with this machine, this environment or this plan, said before the load.

How other rooms use it (`launch` does so before it starts anything):

    from xpu_moe.doctor import collect, judge, worst
    facts = collect(model=Path("/models/M2.7"), plan={"device": "xpu", "tp": 4, …}, deep=False)   # dict, schema 1
    findings = judge(facts)                      # list[Finding], worst first; pure, never raises
    worst(findings)                              # 0 healthy, 1 warnings, 2 errors: the exit code
    [finding.as_dict() for finding in findings]  # code, severity, about, title, why, fix, source
    print("\\n".join(finding.lines()))           # the same for people, plain text without escapes

`collect(model=None, plan=None, deep=False, environ=None, on_phase=None)` reads files and metadata only (< 3 s, no
torch); `deep=True` runs `python -m xpu_moe.doctor.deep` in a child with a limit of 30 s. `environ` is the environment
that the engine will get (the process environment where None); `on_phase(text)` is told what is being read.
`plan` holds the fields of `xpu_moe.doctor.facts.Plan`; those that are unknown stay out or None.

Log lines: `xpu_moe.doctor.logs` (`match`, `Explainer`, `explain`).
"""

from xpu_moe.doctor.collect import collect
from xpu_moe.doctor.finding import Finding, worst
from xpu_moe.doctor.judge import judge

__all__ = ["Finding", "collect", "judge", "worst"]
