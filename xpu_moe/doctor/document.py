"""`python -m xpu_moe.doctor.document`: writes docs/doctor.md from the rules; `--check` says whether it is fresh."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from xpu_moe import streams
from xpu_moe.doctor.messages import MESSAGES
from xpu_moe.doctor.phases import PHASES
from xpu_moe.doctor.rules import RULES
from xpu_moe.doctor.rules.host import KERNELS
from xpu_moe.doctor.rules.libraries import KNOWN
from xpu_moe.doctor.rules.parsers import FAMILIES
from xpu_moe.doctor.rules.slower import TRIED
from xpu_moe.plan.graph_needs import NEEDS

PAGE = Path(__file__).parents[2] / "docs" / "doctor.md"
_HEAD = """# The doctor

This page is written by `python -m xpu_moe.doctor.document`: change the rules, not the page.

`python -m xpu_moe.doctor` collects facts (files and metadata only, under 3 s, no torch) and judges them:

| argument | what |
|---|---|
| `--model DIR` | look at a checkpoint's config, index and headers as well |
| `--plan FILE` | judge a launch plan (the `plan` object below) against machine and model |
| `--deep` | a child (at most 30 s) loads torch and the collective library, tries one exact product on each card |
| `--save FILE` | record the facts: nothing personal; registered variables, secrets masked; unknown `XPU_MOE_` names |
| `--facts FILE` | judge recorded facts instead of this machine; not together with `--model`, `--plan`, `--deep` |
| `--json` | one object: `{"schema", "seen", "findings": [{code, severity, about, title, why, fix, source}], "exit"}` |

Exit codes: 0 healthy, 1 warnings, 2 errors, 64 a bad argument or a file that cannot be read or written, 74 the answer
could not be written on stdout, 141 its reader has gone. Without an answer, `--json` gives
`{"ok": false, "cannot": "why"}`. `scripts/serve_minimax.sh` runs the same rules on its resolved plan before anything is
loaded; an error stops it with exit code 2, `--force` goes on and says so.

An absent fact never makes a finding. Of several findings about one path the worst speaks, the others become notes
(`--verbose` shows them). The last line (`seen`) tells what was looked at: "healthy" without cards, plan or model says
little. Keys and values of facts and plan that have another name or type than below are warned of (`facts.unread`), and
left out; a facts file without any fact is refused (64). Text from foreign facts and logs is stripped of control
sequences and markup.

## Facts, schema 1

`schema` 1 · `os` {kernel, distro, in_container, capabilities, yama_ptrace_scope, seccomp, shm_bytes, iommu,
dri_by_path, ram_bytes, swap_bytes} · `gpus` [{index, pci, device_id, name, memory_bytes, bar_bytes, guc, link_gts,
link_width (of the bridge above an Intel card), display_attached, root_port}] · `peer_access` matrix · `libraries`
[{name, path, version, env_names}] · `python` {version, packages} · `env` · `model` {config, quantization_config,
tensor_names} · `plan` {device, tp, pp, dcp, dtype, max_model_len, max_num_batched_tokens, max_num_seqs,
kv_cache_dtype, kv_cache_memory_bytes, attention_backend, block_size, speculative_method, graph,
cudagraph_capture_sizes, enable_expert_parallel, tool_call_parser, reasoning_parser}.

Everything is optional. Further optional facts: `gpus[].driver`, `gpus[].gemm_exact` (of `--deep`), `deep` (how its
child ended), `deep_failed` {torch, cards} (their errors in it), `python.parsers` (read in the installed vLLM),
`os.compute_runtime`, `os.compiler`, `os.dri_access`, `paths_missing`, `probe.p2p`, `model.shards_missing`,
`model.index_error`, `model.index_advice` (what to do about it), `model.unlike_config` {first, count} (tensors that
config.json means otherwise), `model.files` (files of weights in a folder that was looked at: then `tensor_names` are
all of them), `model.header_error`, `model.tensors_lost` and `model.tokenizer_error` {first, file, count},
`model.tokenizer_missing`, `model.weights_bytes`, `model.folder` (never saved: it may be personal), `unread` (sources
that failed), `plan.enable_chunked_prefill`, `plan.enable_prefix_caching`, `plan.profiler`, `plan.enforce_eager`,
`plan.quantization`.

## Sources

"B70 u4 decode note" is steveseguin/llm-optimizations of 2026-05-09; "B70 field notes" are the public reports and
project documents on four Arc Pro B70 gathered for this project (the number is a section of them); `name#123` is an
issue or pull request.
"""
_LOGS = """## Messages in logs

`python -m xpu_moe.launch explain-log FILE [--json]` reads a finished log (any size, UTF-8 or UTF-16, also .gz) and says
what it means, root cause first, and which phase never ended; the server's own watcher uses the same table. `-` reads a
pipe: `journalctl --user -u minimax | python -m xpu_moe.launch explain-log -`.

Where no rule below names an error, `log.exception` names the first exception of the first process that failed, and what
it ended as: a worker's before the engine's, the engine's before the API server's; of a chain its first; never one that
only says that the cause stands above. What was raised before the server came up did not stop it and does not count.

Exit codes: 0 nothing found or only notes, and the log ends well; 1 warnings; 2 errors with a known cause; 3 a failure
that no rule knows (a traceback, a start that never ended, a complaint in a log without a start); 64 a bad argument or a
file that cannot be read; 74 the answer could not be written on stdout; 141 its reader has gone. `--json` has the
exception as `exception` {line, process, type, message, ended}, and `unexplained` (true where the exit code is 3).
"""


def page() -> str:
    """The whole page."""
    parts = [_HEAD, "## Rules by kind\n"]
    for rule in RULES:
        rows = ((f"`{r.code}`", r.severity, f"`{r.about}`", r.title, f"{r.why}", r.fix, r.source) for r in rule.rows)
        head = ("code", "at worst", "about", "what", "why", "do", "source")
        parts += [f"### {rule.kind[0].upper()}{rule.kind[1:]}\n", f"{rule.doc}\n", _table(head, rows)]
    parts += [
        "## Tables behind the rules\n",
        "Versions known to be bad:\n",
        _table(
            ("component", "versions", "severity", "says", "do", "source"),
            ((k.component, f"`{k.ranges}`", k.severity, k.says, k.fix, k.source) for k in KNOWN),
        ),
        "Graphs on XPU need:\n",
        _table(
            ("component", "refused or in doubt at", "severity", "says", "when", "source"),
            ((n.component, f"`{n.ranges}`", n.severity, n.says, _when(n), n.source) for n in NEEDS),
        ),
        "Kernels:\n",
        _table(
            ("cards", "kernels", "severity", "says"),
            ((", ".join(k.ids), f"`{k.kernels}`", k.severity, k.says) for k in KERNELS),
        ),
        "Measured slower (4xB70, without graphs):\n",
        _table(("field", "figure", "do"), ((f"`plan.{t.field}`", t.says, f"`{t.fix}`") for t in TRIED)),
        "Parsers that fit a model:\n",
        _table(
            ("model_type begins with", "tool call parser", "reasoning parser"),
            ((", ".join(f.kinds), ", ".join(f.tool), ", ".join(f.reasoning)) for f in FAMILIES),
        ),
        "Values and versions of environment variables stand in the registry: `python -m xpu_moe.env --explain NAME`.\n",
        _LOGS,
        _table(
            ("code", "kind", "severity", "about", "what", "do"),
            ((f"`{m.code}`", m.kind, m.severity, f"`{m.about}`", m.title, m.fix) for m in MESSAGES),
        ),
        "Phases of a start, and after how long without a new line one counts as stuck:\n",
        _table(("phase", "what", "limit"), ((p.name, p.says, f"{p.limit_s} s" if p.limit_s else "–") for p in PHASES)),
    ]
    return "\n".join(part.rstrip() + "\n" for part in parts)


def _when(need: object) -> str:
    said = [
        text
        for name, text in (("several", "several cards"), ("int4_moe", "4-bit experts"), ("torch", "torch"))
        if getattr(need, name)
    ]
    return ", ".join(f"{text} {need.torch}" if text == "torch" else text for text in said)  # type: ignore[attr-defined]


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    lines += [f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in row)} |" for row in rows]
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Write the page, or check it: exit 1 when it is stale."""
    parser = streams.Parser(prog="python -m xpu_moe.doctor.document", description=__doc__)
    parser.add_argument("--check", action="store_true")
    fresh = page()
    if parser.parse_args(argv).check:
        same = PAGE.is_file() and PAGE.read_text(encoding="utf-8") == fresh
        text = f"{PAGE.name} is {'fresh' if same else 'stale: run python -m xpu_moe.doctor.document'}"
        return streams.emit("document", text) or (0 if same else 1)
    PAGE.write_text(fresh, encoding="utf-8")
    return streams.emit("document", f"wrote {PAGE.name}")


if __name__ == "__main__":
    sys.exit(main())
