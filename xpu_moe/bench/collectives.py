"""`python -m xpu_moe.bench collectives`: all-reduce and its fused forms against the library, on every rank of a host.

The parent spawns the ranks, reads their rows and ends them after a limit; it imports no device library itself.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from xpu_moe import bounds, files, host_memory, needs, streams

HELP = "all-reduce, QK norm and residual norm across ranks: graph and eager us, rivals, exactness"

# NVLink multicast stays off in every rank: it can put a shared host's GPUs out of service.
NO_MULTICAST = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}
# A rival at its best: NCCL else puts an event behind every captured call, a graph node that the next call waits for
# (its strongstream.cc). Without it no graph may be under way together with another call of its group: here the ranks
# wait for their devices between any two.
NO_EVENTS = {"NCCL_GRAPH_MIXING_SUPPORT": "0"}
SIZES = (8, 512, 6144, 6144 * 4, 96 << 10, 512 << 10, 2 << 20, 8 << 20, 32 << 20, 128 << 20)
SMALL = (8, 6144, 96 << 10)
_ROW = 3072  # values of a token in the fused forms
_ITEM = {"bfloat16": 2, "float16": 2, "float32": 4}  # bytes a value
_MOST_BYTES, _MOST_REPLAYS, _MOST_CPU_RANKS = 1 << 34, 10**9, 64


def _parser() -> streams.Parser:
    parser = streams.Parser(prog="python -m xpu_moe.bench collectives", description=HELP)
    parser.add_argument("--world", type=int, help="ranks (default: all accelerators; 2 on a CPU)")
    parser.add_argument("--device", choices=("cuda", "xpu", "cpu"), help="default: the first accelerator, else the CPU")
    parser.add_argument("--sizes", help="bytes, comma separated")
    parser.add_argument("--dtype", choices=tuple(_ITEM), default="bfloat16")
    parser.add_argument("--tokens", default="1,4,16", help="M of the fused forms, comma separated")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--replays", type=int, default=0, help="checked all-reduces with changing data (cuda)")
    parser.add_argument("--sweep", action="store_true", help="every kernel at every size: what the table is made from")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds before the ranks are ended")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout, the table on stderr")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="also write a PNG")
    return parser


def main(argv: Sequence[str]) -> int:
    """0: all right; 1: a wrong result or a failed rank; 2: bad arguments, too few devices, or no torch; 3: the time
    limit passed; 74, 141: `streams.emit`."""
    from xpu_moe import device

    arguments = _parser().parse_args(argv)
    if lacking := needs.unusable("torch"):
        return streams.refuse("bench", lacking, arguments.json)
    kind = arguments.device or device.current().kind
    try:
        job = _job(arguments, kind)
    except ValueError as error:
        return streams.refuse("bench", str(error), arguments.json)
    rows, about, code = run_ranks(job, arguments.timeout)
    about = {**about, "command": " ".join(["python -m xpu_moe.bench collectives", *argv])}
    if code:  # what was measured before is shown all the same
        about["failed"] = "the time limit passed" if code == 3 else "a rank failed"
    elif not rows:
        about["failed"], code = "nothing was measured", 1
    lost, wrong = _finish(rows, about, arguments)
    return lost or code or wrong


def _job(arguments: argparse.Namespace, kind: str) -> dict[str, Any]:
    """What the ranks are told to do. Raises ValueError for arguments that cannot be meant, or not here."""
    from xpu_moe.comm.peers import ROOMS

    world = _world(arguments.world, kind)
    bounds.whole("--rounds", arguments.rounds, 1, bounds.ROUNDS)
    bounds.seconds("--timeout", arguments.timeout)
    bounds.whole("--replays", arguments.replays, 0, _MOST_REPLAYS)
    for option, given in (("--replays", arguments.replays), ("--sweep", arguments.sweep)):
        if given and kind not in ROOMS:
            raise ValueError(
                f"{option}: {kind} has no all-reduce kernels of ours; wanted --device {' or '.join(ROOMS)}"
            )
    sizes: Sequence[int] = SMALL if kind == "cpu" else SIZES
    if arguments.sizes is not None:
        sizes = bounds.listed("--sizes", arguments.sizes, _MOST_BYTES)
    item = _ITEM[arguments.dtype]
    odd = [size for size in sizes if size % item]
    if odd:
        raise ValueError(
            f"--sizes: got {odd[0]} bytes, wanted a multiple of {item}, which --dtype {arguments.dtype} takes"
        )
    tokens = bounds.listed("--tokens", arguments.tokens, bounds.TOKENS)
    if kind == "cpu":
        _check_memory(world, max(*sizes, max(tokens) * _ROW * item))
    files.check_picture("--plot", arguments.plot)
    return {
        "kind": kind,
        "world": world,
        "sizes": list(sizes),
        "tokens": list(tokens),
        "dtype": arguments.dtype,
        "rounds": arguments.rounds,
        "replays": arguments.replays,
        "sweep": arguments.sweep,
    }


def _check_memory(ranks: int, largest: int) -> None:
    """Raise ValueError where messages of `largest` bytes do not fit into the host's free memory.

    A CPU rank takes 25 times its message (measured: the fingerprint's 64-bit words of each byte).
    """
    short = host_memory.shortage(ranks, largest, 26)
    if short:
        raise ValueError(
            f"--sizes, --tokens: got messages of {largest} bytes, for which {ranks} ranks need {short}; wanted smaller "
            "ones, or a smaller --world"
        )


def _world(asked: int | None, kind: str) -> int:
    """How many ranks. Raises ValueError where there are not so many devices."""
    from xpu_moe import device

    found = _MOST_CPU_RANKS if kind == "cpu" else len(device.devices(kind))
    if not found:
        raise ValueError(f"--device {kind}: none here ({'; '.join(device.inventory().unseen)})")
    if found < 2:
        raise ValueError(f"--device {kind}: got 1 device, wanted 2 or more (ranks on a CPU: --device cpu)")
    world = (2 if kind == "cpu" else found) if asked is None else asked
    if not 2 <= world <= found:
        raise ValueError(f"--world: got {world}, wanted 2 to {found} ({kind})")
    return world


def rank_environment(yours: Mapping[str, str]) -> dict[str, str]:
    """A rank's environment: multicast off whatever yours says, graph mixing off unless yours says otherwise."""
    return {**NO_EVENTS, **yours, **NO_MULTICAST}


def run_ranks(job: dict[str, Any], timeout_s: float) -> tuple[list[dict], dict[str, Any], int]:
    """Run the ranks of a job: (rows, about, exit code). Rank 0 writes one JSON object a line."""
    from xpu_moe.env import read

    with _terminable(), tempfile.TemporaryDirectory(prefix="xpu_moe_bench_") as folder:
        environment = rank_environment(read.snapshot())
        command = [
            sys.executable,
            "-m",
            "xpu_moe.bench._rank",
            json.dumps(job),
            f"file://{folder}/store",
            str(os.getpid()),
        ]
        ranks = [
            subprocess.Popen(
                [*command, str(rank)], env=environment, start_new_session=True,
                stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
            )
            for rank in range(job["world"])
        ]  # fmt: skip
        late = threading.Event()

        def stop() -> None:
            late.set()
            _end(ranks)

        timer = threading.Timer(timeout_s, stop)
        timer.start()
        try:
            rows, about = _read(ranks)
            codes = [rank.wait() for rank in ranks]
        finally:
            timer.cancel()
            _end(ranks)
    if late.is_set():
        streams.warn(f"bench: the ranks did not end within {timeout_s:g} s and were stopped")
        return rows, about, 3
    if any(codes):
        streams.warn(f"bench: ranks ended with {codes}")
    return rows, about, 1 if any(codes) else 0


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """Inside, SIGTERM ends the process as an exception does: ranks and folder go first. Exit code 143."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _read(ranks: list[subprocess.Popen]) -> tuple[list[dict], dict[str, Any]]:
    rows: list[dict] = []
    about: dict[str, Any] = {}
    watcher = threading.Thread(target=_end_on_failure, args=(ranks,), daemon=True)
    watcher.start()
    for line in ranks[0].stdout or ():
        found = json.loads(line)
        if "row" in found:
            rows.append(found["row"])
            row = found["row"]
            streams.warn(f"bench: {row['name']} {row['shape']} {row['timing']['us']:.2f} us")
        else:
            about.update(found)
    return rows, about


def _end_on_failure(ranks: list[subprocess.Popen]) -> None:
    """A rank that fails leaves the others waiting: end them."""
    waiting = list(ranks)
    while waiting:
        for rank in list(waiting):
            try:
                code = rank.wait(timeout=0.2)
            except subprocess.TimeoutExpired:
                continue
            waiting.remove(rank)
            if code:
                _end(ranks)
                return


def _end(ranks: list[subprocess.Popen]) -> None:
    """Stop our own children, each by its own process group."""
    for rank in ranks:
        if rank.poll() is None:
            try:
                os.killpg(rank.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            rank.wait()


def _finish(rows: list[dict], about: dict[str, Any], arguments: argparse.Namespace) -> tuple[int, int]:
    """The answer and the picture: the code of what could not be written (or 0), and 1 for a wrong result."""
    from xpu_moe.bench import report
    from xpu_moe.bench.timing import Timing

    derived = ("tb_per_s", "times_floor", "times_faster")
    made = [
        report.Row(**{**{k: v for k, v in row.items() if k not in derived}, "timing": Timing(**row["timing"])})
        for row in rows
    ]
    lines = [
        f"{about['world']} x {about['device']}, torch {about['torch']}, {about['library']}; {about['peer_memory']}; "
        "us of the slowest rank"
        if "device" in about
        else "no rank came as far as to name its device"
    ]
    lines += [report.table(made), report.reasons(made)] if made else []
    lines += [f"failed: {about['failed']}"] if "failed" in about else []
    lines += [f"replays: {json.dumps(about['replays'])}"] if "replays" in about else []
    lost = report.say("\n".join(lines), report.document(made, about), arguments.json)
    if arguments.plot and made:
        title = f"xpu_moe collectives on {about.get('world')} x {about.get('device')}"
        lost = report.plot(made, arguments.plot, title) or lost
    wrong = sum(value for row in made for name, value in row.errors.items() if name in ("wrong", "bits"))
    return lost, 1 if wrong or about.get("replays", {}).get("wrong") else 0
