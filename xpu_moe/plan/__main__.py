"""`python -m xpu_moe.plan`: does the model fit, how much KV, how fast at best.

Exit codes: 0 a plan exists, 1 it does not fit, 2 wrong arguments or an unreadable model, 74 the answer could not be
written, 141 its reader has gone.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from xpu_moe import bounds, files, streams
from xpu_moe.plan import checks, picture, split
from xpu_moe.plan.cards import BY_KEY, Card, cpu
from xpu_moe.plan.checkpoint import BadCheckpoint, Checkpoint, read, read_config, unreadable
from xpu_moe.plan.memory import MemoryPlan, Request, plan_memory
from xpu_moe.plan.profiles import PROFILES, Profile
from xpu_moe.plan.roofline import Roofline, probe_doubts, roofline
from xpu_moe.plan.shapes import KV_TYPES, Shapes, shapes_of
from xpu_moe.plan.sizes import gib, size
from xpu_moe.plan.weights import Weights, weights

FITS, TOO_MUCH, USAGE = 0, 1, 2
_MOST_JSON = 64 << 20
_MOST = {  # of what one plans; beyond is a typing error
    "tp": 1024, "pp": 1024, "block_size": 1 << 16, "max_model_len": 1 << 30, "max_num_batched_tokens": 1 << 24,
    "max_num_seqs": 1 << 20,
}  # fmt: skip
_BLOCK = {"xpu": 64, "cuda": 16, "cpu": 128}


class Wrong(ValueError):
    """An argument or a model that cannot be planned."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the planner; returns its exit code."""
    streams.prepare()
    arguments = _parser().parse_args(argv)
    if arguments.profiles:
        return streams.emit("plan", json.dumps(_profiles()) if arguments.json else "\n".join(_profile_lines()))
    try:
        return _run(arguments)
    except BadCheckpoint as error:
        return streams.refuse("plan", error.problem.located, arguments.json, USAGE)
    except (Wrong, ValueError, OSError, ImportError) as error:
        return streams.refuse("plan", str(error), arguments.json, USAGE)


def _parser() -> streams.Parser:
    parser = streams.Parser(prog="python -m xpu_moe.plan", description=__doc__)
    add = parser.add_argument
    add("--model", type=Path, metavar="DIR", help="a checkpoint folder; config.json alone is enough")
    add("--tp", type=int, help="tensor-parallel size (1, or the profile's)")
    add("--pp", type=int, help="pipeline-parallel size")
    add("--card", choices=[*BY_KEY, "cpu"], help="kind of card (b70, or the profile's)")
    add("--profile", choices=list(PROFILES), help="a named launch; other arguments override its settings")
    add("--profiles", action="store_true", help="list the named launches and the measured points behind them")
    add("--kv-cache-memory-bytes", type=str, metavar="SIZE", help="256M (binary), 256m (decimal) or bytes")
    add("--kv-cache-dtype", metavar="TYPE", help=f"one of {', '.join(KV_TYPES)} (auto, or the profile's)")
    add("--block-size", type=int, help="tokens of a KV block (64 on XPU, 16 on CUDA, 128 on the CPU)")
    add("--max-model-len", type=int)
    add("--max-num-batched-tokens", type=int)
    add("--max-num-seqs", type=int)
    add("--gpu-memory-utilization", type=float, default=0.95)
    add("--graph", action=argparse.BooleanOptionalAction, help="count the graphs' memory")
    add("--enable-expert-parallel", action="store_true")
    add("--roofline", action="store_true", help="bytes and collectives of one decode step")
    add("--batch", type=int, default=1, help="sequences decoded together (roofline)")
    add("--context", type=int, default=2048, help="tokens in each sequence's KV (roofline)")
    add("--probe", type=Path, metavar="FILE", help="JSON of `python -m xpu_moe.probe allreduce --json`")
    add("--plot", type=Path, metavar="FILE", help="write the picture as PNG")
    add("--json", action="store_true", help="one JSON object on stdout")
    return parser


def _run(arguments: argparse.Namespace) -> int:
    if arguments.model is None:
        raise Wrong("--model: got nothing, wanted a checkpoint folder (config.json alone is enough)")
    files.check_picture("--plot", arguments.plot)
    if arguments.probe and not arguments.roofline:
        raise Wrong("--probe: its latencies are for --roofline; wanted --roofline with it")
    profile = PROFILES.get(arguments.profile) if arguments.profile else None
    checkpoint = _checkpoint(arguments.model)
    unsized = checks.check(checkpoint)
    shapes = shapes_of(checkpoint.config, checkpoint.quantization)
    assert shapes is not None, "checked above"
    card = _card(arguments, profile)
    request = _request(arguments, profile, card)
    _check(request, shapes)
    plan, found = _plan(checkpoint, shapes, card, request)
    notes = checks.told_of_sizes(checkpoint, found, unsized, request.pp, arguments.roofline)
    notes += _notes(shapes, request)
    probe = _probe(arguments.probe) if arguments.probe else None
    line = _roofline(arguments, shapes, card, request, probe) if arguments.roofline else None
    notes += probe_doubts(probe, card, request.tp) if probe is not None else []
    if arguments.plot:
        picture.png(plan, arguments.plot)
        streams.warn(f"plan: wrote {arguments.plot}")
    for note in notes:
        streams.warn(f"plan: {note}")
    if arguments.json:
        text = json.dumps(
            {**plan.as_dict(), "notes": notes, **({"roofline": line.as_dict()} if line else {}), **_named(profile)}
        )
    else:
        wider = 0 if plan.fits else _wider(checkpoint, shapes, card, request)
        text = "\n".join(_lines(plan, line, profile, wider))
    return streams.emit("plan", text) or (FITS if plan.fits else TOO_MUCH)


def _checkpoint(given: Path) -> Checkpoint:
    try:
        folder, there = given.is_dir(), given.exists()
    except OSError as error:  # a folder above that may not be entered, a name that is too long
        raise unreadable(given, error) from None
    if folder:
        return read(given)
    if there:
        files.check_regular("--model", given, _MOST_JSON, "a checkpoint folder, or a config.json")
    return read_config(given)


def _card(arguments: argparse.Namespace, profile: Profile | None) -> Card:
    key = arguments.card or (profile.card if profile else "b70")
    return cpu() if key == "cpu" else BY_KEY[key]


def _request(arguments: argparse.Namespace, profile: Profile | None, card: Card) -> Request:
    settings: dict[str, Any] = dict(profile.settings) if profile else {}
    for field in ("tp", "pp", "block_size", "max_model_len", "max_num_batched_tokens", "max_num_seqs", "graph"):
        given = getattr(arguments, field)
        if given is not None:
            settings[field] = given
    if arguments.kv_cache_memory_bytes is not None:
        settings["kv_cache_memory_bytes"] = _kv_bytes(arguments.kv_cache_memory_bytes)
    return Request(
        tp=settings.get("tp", 1),
        pp=settings.get("pp", 1),
        max_model_len=settings.get("max_model_len"),
        max_num_batched_tokens=settings.get("max_num_batched_tokens", 1024),
        max_num_seqs=settings.get("max_num_seqs", 1),
        block_size=settings.get("block_size", _BLOCK[card.device]),
        kv_dtype=arguments.kv_cache_dtype or settings.get("kv_cache_dtype") or "auto",
        kv_bytes=settings.get("kv_cache_memory_bytes"),
        utilization=arguments.gpu_memory_utilization,
        graph=bool(settings.get("graph")),
        expert_parallel=arguments.enable_expert_parallel,
        reserve=profile.reserve if profile else None,
    )


def _kv_bytes(text: str) -> int:
    try:
        found = size(text)
    except ValueError as error:
        raise Wrong(f"--kv-cache-memory-bytes: {str(error).removeprefix('size: ')}") from None
    return bounds.whole("--kv-cache-memory-bytes", found, 1, 1 << 50)


def _check(request: Request, shapes: Shapes) -> None:
    for name, most in _MOST.items():
        value = getattr(request, name)
        if value is not None:
            bounds.whole(f"--{name.replace('_', '-')}", value, 1, most)
    if request.kv_dtype.lower() not in KV_TYPES:
        raise Wrong(f"--kv-cache-dtype: got {request.kv_dtype!r}, wanted one that is counted: {', '.join(KV_TYPES)}")
    if not 0 < request.utilization <= 1:
        raise Wrong(f"--gpu-memory-utilization: got {request.utilization}, wanted above 0 and at most 1")
    if request.pp > shapes.layers:
        raise Wrong(f"--pp: got {request.pp}, wanted at most the {shapes.layers} layers")
    says = split.problem(shapes, request.tp, expert_parallel=request.expert_parallel, finer=True)
    if says:
        good = split.possible(shapes, expert_parallel=request.expert_parallel)
        raise Wrong(f"--tp: got {request.tp}: {says}; possible: {', '.join(map(str, good))}")


def _plan(checkpoint: Checkpoint, shapes: Shapes, card: Card, request: Request) -> tuple[MemoryPlan, Weights]:
    """The plan, and the weights that it is made of."""
    found = weights(checkpoint, shapes, request.tp, request.pp, request.expert_parallel)
    return plan_memory(shapes, found.parts, card, request, found.source), found


def _notes(shapes: Shapes, request: Request) -> list[str]:
    """What a reader must know of the launch."""
    notes = []
    if not (request.max_model_len or shapes.max_positions):
        notes.append(
            "max_position_embeddings is missing: max_model_len is all that the KV holds, wanted --max-model-len"
        )
    if request.max_model_len and shapes.max_positions and request.max_model_len > shapes.max_positions:
        notes.append(
            f"--max-model-len {request.max_model_len} is beyond the model's {shapes.max_positions} positions: vLLM "
            "refuses it without VLLM_ALLOW_LONG_MAX_MODEL_LEN=1"
        )
    if split.needs_finer(shapes, request.tp, expert_parallel=request.expert_parallel):
        notes.append(f"--tp {request.tp} splits the FP8 blocks of the experts, which vLLM does from 0.32 on")
    return notes


def _wider(checkpoint: Checkpoint, shapes: Shapes, card: Card, request: Request) -> int:
    """The next tensor-parallel size at which it fits; 0 where there is none up to 16 cards."""
    for tp in range(request.tp + 1, 17):
        wider = replace(request, tp=tp)
        try:
            _check(wider, shapes)
        except Wrong:
            continue
        if _plan(checkpoint, shapes, card, wider)[0].fits:
            return tp
    return 0


def _roofline(
    arguments: argparse.Namespace, shapes: Shapes, card: Card, request: Request, probe: dict[str, Any] | None
) -> Roofline:
    if card.bandwidth <= 0:
        raise Wrong(f"--roofline: no bandwidth is known for {card.key}")
    bounds.whole("--batch", arguments.batch, 1, _MOST["max_num_seqs"])
    bounds.whole("--context", arguments.context, 0, _MOST["max_model_len"])
    return roofline(shapes, card, request.tp, arguments.batch, arguments.context, request.kv_dtype, probe)


def _probe(file: Path) -> dict[str, Any]:
    wanted = "the JSON object of the all-reduce probe"
    try:
        files.check_regular("--probe", file, _MOST_JSON, f"a file with {wanted}")
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise Wrong(f"--probe: got {str(file)!r}: {error.strerror}; wanted a file with {wanted}") from None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise Wrong(f"--probe: got {str(file)!r}, which is no JSON; wanted {wanted}") from None
    if not isinstance(found, dict):
        raise Wrong(f"--probe: got {type(found).__name__}, wanted {wanted}")
    return found


def _named(profile: Profile | None) -> dict[str, Any]:
    if profile is None:
        return {}
    points = [asdict(point) for point in profile.points]
    return {"profile": profile.name, "proved": profile.proved, "evidence": profile.evidence, "points": points}


def _lines(plan: MemoryPlan, line: Roofline | None, profile: Profile | None, wider: int) -> list[str]:
    out = picture.bar(plan)
    out += [
        f"{'fits' if plan.fits else 'does not fit'}: {plan.why}{f'; --tp {wider} fits' if wider else ''}",
        f"KV: {plan.kv_bytes_per_token:,} bytes a token and rank, "
        f"{plan.kv_tokens:,} tokens in blocks of {plan.block_size}",
    ]
    if plan.kv_bytes and plan.max_model_len:
        need = f"one sequence of {plan.max_model_len} needs {gib(plan.need_bytes)}"
        out.append(f"--kv-cache-memory-bytes {plan.kv_bytes}  ({need})")
    if line:
        out += [f"one decode step of {line.tokens} at context {line.context}, {line.bandwidth / 1e9:.0f} GB/s:"]
        out += [f"  {item.name:22} {item.bytes / 1e6:9.1f} MB {item.ms:8.3f} ms" for item in line.items]
        out += [
            f"  {line.collectives} all-reduces x {line.collective_us:.1f} us ({line.latency_source})"
            f" {line.collective_ms:8.3f} ms",
            f"  ceiling: {line.step_ms:.2f} ms = {line.tok_per_s:.0f} tok/s",
        ]
    if profile:
        out += _points(profile)
    return out


def _points(profile: Profile) -> list[str]:
    state = f"{'proved' if profile.proved else 'not proved'}: {profile.evidence}"
    lines = [f"profile {profile.name}: {profile.doc}", f"  {state}"]
    if profile.probe_first:
        lines.append("  graphs stay off until `python -m xpu_moe.probe allreduce` has passed on this machine")
    for point in profile.points:
        lines.append(
            f"  measured {point.tok_per_s:.2f} tok/s at {point.prompt}/{point.output}: "
            f"{point.source}; {point.conditions}"
        )
    return lines


def _profile_lines() -> list[str]:
    return [line for profile in PROFILES.values() for line in _points(profile)]


def _profiles() -> dict[str, Any]:
    return {
        "profiles": [{**_named(p), "doc": p.doc, "plan": p.plan(), "flags": list(p.flags)} for p in PROFILES.values()]
    }


if __name__ == "__main__":
    sys.exit(streams.interruptible("plan", main))
