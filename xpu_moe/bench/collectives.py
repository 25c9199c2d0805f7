"""`python -m xpu_moe.bench collectives`: all-reduce and its fused forms against the library, on every rank of a host.

The parent spawns the ranks, reads their rows and ends them after a limit; it imports no device library itself.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

HELP = "all-reduce, QK norm and residual norm across ranks: graph and eager us, rivals, exactness"

# NVLink multicast stays off in every rank: it can put a shared host's GPUs out of service.
NO_MULTICAST = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}
# A rival at its best: NCCL else puts an event behind every captured call, a graph node that the next call waits for
# (its strongstream.cc). Without it no graph may be under way together with another call of its group: here the ranks
# wait for their devices between any two.
NO_EVENTS = {"NCCL_GRAPH_MIXING_SUPPORT": "0"}
SIZES = (8, 512, 6144, 6144 * 4, 96 << 10, 512 << 10, 2 << 20, 8 << 20, 32 << 20, 128 << 20)
SMALL = (8, 6144, 96 << 10)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m xpu_moe.bench collectives", description=HELP)
    parser.add_argument("--world", type=int, help="ranks (default: all accelerators; 2 on a CPU)")
    parser.add_argument("--device", choices=("cuda", "xpu", "cpu"), help="default: the first accelerator, else the CPU")
    parser.add_argument("--sizes", help="bytes, comma separated")
    parser.add_argument("--dtype", choices=("bfloat16", "float16", "float32"), default="bfloat16")
    parser.add_argument("--tokens", default="1,4,16", help="M of the fused forms, comma separated")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--replays", type=int, default=0, help="checked all-reduces with changing data (cuda)")
    parser.add_argument("--sweep", action="store_true", help="every kernel at every size: what the table is made from")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds before the ranks are ended")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout, the table on stderr")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="also write a PNG")
    return parser


def main(argv: Sequence[str]) -> int:
    """0: all right; 1: a wrong result or a failed rank; 2: bad arguments; 3: the time limit passed."""
    from xpu_moe import device
    from xpu_moe.bench import report

    arguments = _parser().parse_args(argv)
    kind = arguments.device or device.current().kind
    found = len(device.devices(kind))
    world = (2 if kind == "cpu" else found) if arguments.world is None else arguments.world
    if world < 2 or (kind != "cpu" and world > found):
        most = "or more" if kind == "cpu" else f"to {found}"
        print(f"bench: --world {world}: wanted 2 {most} ({kind})", file=sys.stderr)
        return 2
    try:
        sizes = _numbers("--sizes", arguments.sizes) or (SMALL if kind == "cpu" else SIZES)
        tokens = _numbers("--tokens", arguments.tokens)
        report.check_plot(arguments.plot)
        if arguments.rounds < 1 or not 0 < arguments.timeout < math.inf:
            raise ValueError(f"--rounds {arguments.rounds}, --timeout {arguments.timeout:g}: wanted more than 0")
    except ValueError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    job = {
        "kind": kind,
        "world": world,
        "sizes": list(sizes),
        "tokens": tokens,
        "dtype": arguments.dtype,
        "rounds": arguments.rounds,
        "replays": arguments.replays,
        "sweep": arguments.sweep,
    }
    rows, about, code = run_ranks(job, arguments.timeout)
    about = {**about, "command": " ".join(["python -m xpu_moe.bench collectives", *argv])}
    if code:  # what was measured before is shown all the same
        about["failed"] = "the time limit passed" if code == 3 else "a rank failed"
    wrong = _finish(rows, about, arguments)
    return code or wrong


def _numbers(option: str, text: str | None) -> list[int]:
    """Whole numbers from 1 on, comma separated. Raises ValueError."""
    parts = [part.strip() for part in text.split(",")] if text else []
    if not all(part.isdigit() and int(part) for part in parts):
        raise ValueError(f"{option}: got {text!r}, wanted whole numbers from 1 on, comma separated")
    return [int(part) for part in parts]


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
        print(f"bench: the ranks did not end within {timeout_s:g} s and were stopped", file=sys.stderr)
        return rows, about, 3
    if any(codes):
        print(f"bench: ranks ended with {codes}", file=sys.stderr)
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
            print(f"bench: {found['row']['name']} {found['row']['shape']} {found['row']['timing']['us']:.2f} us",
                  file=sys.stderr, flush=True)  # fmt: skip
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


def _finish(rows: list[dict], about: dict[str, Any], arguments: argparse.Namespace) -> int:
    from xpu_moe.bench import report
    from xpu_moe.bench.timing import Timing

    derived = ("tb_per_s", "times_floor", "times_faster")
    made = [
        report.Row(**{**{k: v for k, v in row.items() if k not in derived}, "timing": Timing(**row["timing"])})
        for row in rows
    ]
    where = sys.stderr if arguments.json else sys.stdout
    print(f"{about.get('world')} x {about.get('device')}, torch {about.get('torch')}, {about.get('library')}; "
          f"{about.get('peer_memory')}; us of the slowest rank", file=where)  # fmt: skip
    print(report.table(made), file=where)
    print(report.reasons(made), file=where)
    if "replays" in about:
        print(f"replays: {json.dumps(about['replays'])}", file=where)
    if arguments.json:
        json.dump(report.document(made, about), sys.stdout)
        print()
    if arguments.plot and made:
        report.plot(made, arguments.plot, f"xpu_moe collectives on {about.get('world')} x {about.get('device')}")
    wrong = sum(value for row in made for name, value in row.errors.items() if name in ("wrong", "bits"))
    return 1 if wrong or about.get("replays", {}).get("wrong") else 0
