"""A plan comes to life: preflight, server, watch, canary, readiness, the end. Every road out stops what was started."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from xpu_moe.launch import canary, ready, versions
from xpu_moe.launch.console import Console
from xpu_moe.launch.errors import CANARY, ENGINE, INTERRUPTED, OK, Interrupted, LaunchError
from xpu_moe.launch.model import Model
from xpu_moe.launch.plan import LaunchPlan
from xpu_moe.launch.server import Server
from xpu_moe.launch.watch import CANARY as CANARY_PHASE
from xpu_moe.launch.watch import SERVING, Watch, limit, says
from xpu_moe.serving import report

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_TICK = 0.2
_REAL_WIDTH = 1024  # hidden_size; the demo has 256, MiniMax-M2 3072


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """SIGINT, SIGTERM and SIGHUP raise Interrupted inside; later ones are ignored, so that the end is not cut short.

    A SIGHUP that is ignored already (nohup) stays so.
    """
    heeded = [n for n in _SIGNALS if n != signal.SIGHUP or signal.getsignal(n) != signal.SIG_IGN]

    def raise_once(number: int, _frame: object) -> None:
        for other in _SIGNALS:
            signal.signal(other, signal.SIG_IGN)
        raise Interrupted(signal.Signals(number).name)

    before = {number: signal.signal(number, raise_once) for number in heeded}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Run:
    """One launch of a plan. `serve` returns the exit code; `summary` tells what happened."""

    def __init__(self, plan: LaunchPlan, folder: Path, console: Console, environ: Mapping[str, str]) -> None:
        self.plan, self.folder, self.console = plan, folder, console
        self._environ = plan.child_environment(environ)
        self._begun = time.monotonic()
        self._watch = Watch(self._begun, limit(environ))
        self._lock = threading.Lock()
        self._result = canary.Result()
        self._error = ""
        self._seconds: dict[str, float] = {}
        self._findings: list[Any] = []
        self._stopping = False

    def serve(self, *, check: bool, findings: list[Any]) -> int:
        """Start, prove, and serve until a signal (`check`: stop after the proof). Returns the exit code."""
        self._findings = findings
        server = Server(self.plan.command, self._environ, self.folder / "vllm.log", self.console.masker, self._line)
        self.console.say(f"vLLM's log: {server.log}")
        code = OK
        try:
            self._until_healthy(server)
            self._ask(server)
            self._announce()
            if not check:
                self._until_told(server)
        except Interrupted as signal_name:
            self.console.say(f"{signal_name}: stopping")
            code, self._error = INTERRUPTED, str(signal_name)
        except LaunchError as error:
            code, self._error = error.code, str(error)
        finally:
            self._stopping = True
            ready.notify("STOPPING=1")
            self._seconds["stop"] = round(server.stop(), 2)
        self.console.say(f"stopped in {self._seconds['stop']:.1f} s")
        if code not in (OK, INTERRUPTED):
            self._explain(server)
        return code

    def summary(self, code: int) -> dict[str, Any]:
        """The run as one object for `--json`; secrets are masked by the console that prints it."""
        told = report.summary(self.folder / "report")
        installed = versions.installed()
        plan = self.plan.as_dict(self.console.masker)
        return {
            "ok": code == OK,
            "exit_code": code,
            "error": self._error or None,
            "completion": self._result.completion,
            "chat": self._result.chat,
            "token_ids": self._result.token_ids,
            "logprobs": self._result.logprobs,
            "arithmetic": self._result.arithmetic,
            "backend": told["backend"],
            "reason": told["reason"],
            "serving": {k: v for k, v in told.items() if k not in ("backend", "reason")},
            "vllm": installed.get("vllm", ""),
            "versions": installed,
            "seconds": round(time.monotonic() - self._begun, 2),
            "timings": self._seconds,
            "phases": self._watch.timings(time.monotonic()),
            "preflight": [finding.as_dict() for finding in self._findings],
            "log_findings": [finding.as_dict() for finding in self._watch.causes()],
            "log": str(self.folder / "vllm.log"),
            **{name: plan[name] for name in ("model", "device", "settings", "environment", "command", "notes")},
        }

    def _line(self, line: str) -> None:
        with self._lock:
            opened, finding = self._watch.feed(line, time.monotonic())
        if opened:
            self.console.say(f"phase {opened}: {says(opened)}")
        if finding and finding.severity != "info" and not self._stopping:
            self.console.say(f"log: {finding.one_line()}")

    def _until_healthy(self, server: Server) -> None:
        client = canary.Client(self.plan.url, self.plan.name)
        while True:
            self._alive(server)
            if client.health():
                server.read_up()  # the phases that the log tells come before the canary's
                self._seconds["healthy"] = round(time.monotonic() - self._begun, 2)
                return
            time.sleep(_TICK)

    def _alive(self, server: Server) -> None:
        code = server.poll()
        if code is not None:
            server.read_up()  # its last lines name the phase
            raise LaunchError(ENGINE, f"vLLM ended with code {code} in phase {self._watch.phase}")
        with self._lock:
            stall = self._watch.stalled(time.monotonic())
        if stall:
            raise LaunchError(ENGINE, f"vLLM {stall.text()}")

    def _ask(self, server: Server) -> None:
        """The canary, in a thread of its own: while it waits for an answer, death and stalls are still seen."""
        with self._lock:
            self._watch.enter(CANARY_PHASE, time.monotonic())
        self.console.say(f"phase canary: {says(CANARY_PHASE)}")
        begun = time.monotonic()
        client = canary.Client(self.plan.url, self.plan.name, self._environ.get("VLLM_API_KEY", ""))
        outcome: list[canary.Result | Exception] = []

        def ask() -> None:
            try:
                outcome.append(canary.ask(client, real=is_real(self.plan.model)))
            except Exception as error:
                outcome.append(error)

        thread = threading.Thread(target=ask, daemon=True)
        thread.start()
        while thread.is_alive():
            thread.join(_TICK)
            if thread.is_alive():
                self._alive(server)
        self._seconds["canary"] = round(time.monotonic() - begun, 2)
        if isinstance(outcome[0], canary.CanaryFailed):
            time.sleep(_TICK)  # an engine that died of the question is ENGINE, not CANARY
            if "EngineCore encountered an issue" in str(outcome[0]) or server.poll() is not None:
                raise LaunchError(ENGINE, f"vLLM died at the first request: {outcome[0]}")
            raise LaunchError(CANARY, f"canary: {outcome[0]}")
        if isinstance(outcome[0], Exception):
            raise outcome[0]
        self._result = outcome[0]
        self._seconds["ready"] = round(time.monotonic() - self._begun, 2)

    def _announce(self) -> None:
        with self._lock:
            self._watch.enter(SERVING, time.monotonic())
        told = report.summary(self.folder / "report")
        show = self.console.result
        show(f"completion: {canary.PROMPT!r} -> {self._result.completion!r}")
        show(f"chat: {self._result.chat!r}")
        show(f"backend: {told['backend'] or 'unknown'}: {told['reason']}")
        show(f"ready after {self._seconds['ready']:.0f} s at {self.plan.url}; try:\n")
        show(f"{ready.curl(self.plan, with_key=bool(self._environ.get('VLLM_API_KEY')))}\n")
        if line := ready.bench(self.plan):
            show(f"{line}\n")
        ready.notify("READY=1")

    def _until_told(self, server: Server) -> None:
        self.console.say("serving; Ctrl-C stops")
        while True:
            self._alive(server)
            time.sleep(_TICK)

    def _explain(self, server: Server) -> None:
        """Why it failed: what is known about the log's lines, else its last lines."""
        with self._lock:
            causes = self._watch.causes()
        for finding in causes[:3]:
            self.console.say(f"likely: {finding.one_line()}")
        if not causes:
            self.console.plain("\n".join(list(server.tail)[-15:]))


def is_real(model: Model) -> bool:
    """Whether a model can be expected to add two numbers: random weights of a demo and toys of that size cannot."""
    width = model.config.get("hidden_size")
    return isinstance(width, int) and width >= _REAL_WIDTH
