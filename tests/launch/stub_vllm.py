"""Stands in for the vllm command: prints the lines of a start, answers like the API server, or misbehaves.

STUB_MODE is a comma list: die, stall, dead-engine, drift, nan, deaf (ignores SIGTERM), orphan (a process of its own
session that ignores SIGTERM), shm (a file in /dev/shm, mapped and left), slow (SECONDS in the canary's request).
STUB_OUT gets arguments, environment and process ids as JSON.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MODE = set(os.environ.get("STUB_MODE", "").split(","))
LINES = (
    "INFO [api_utils.py:286] non-default args: " + repr({"api_key": os.environ.get("VLLM_API_KEY", "")}),
    "INFO [model.py:733] Resolved architecture: MiniMaxM2ForCausalLM",
    "INFO [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: …",
    "INFO [parallel_state.py:1906] world_size=1 rank=0 local_rank=0 distributed_init_method=file:///tmp/x backend=gloo",
    "INFO [cpu_model_runner.py:68] Starting to load model …",
)
SLEEPER = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
calls = 0


def option(name: str) -> str:
    return sys.argv[sys.argv.index(name) + 1]


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self.answer(200, {"data": [{"id": option("--served-model-name")}]})

    def do_POST(self) -> None:
        global calls
        calls += 1
        key = os.environ.get("VLLM_API_KEY")
        self.rfile.read(int(self.headers["Content-Length"]))
        if key and self.headers.get("Authorization") != f"Bearer {key}":
            return self.answer(401, {"error": {"message": "Unauthorized"}})
        if "dead-engine" in MODE:
            message = "EngineCore encountered an issue. See stack trace (above) for the root cause."
            return self.answer(500, {"error": {"message": message}})
        if "slow" in MODE:
            time.sleep(600)
        if "chat" in self.path:
            return self.answer(200, {"choices": [{"message": {"content": "hello"}}]})
        tokens = [7, 8, calls if "drift" in MODE else 9]
        logprobs = [-1.0, float("nan") if "nan" in MODE else -0.5, -2.0]
        choice = {"text": "abc", "token_ids": tokens, "logprobs": {"token_logprobs": logprobs}}
        return self.answer(200, {"choices": [choice]})

    def answer(self, status: int, body: dict) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def main() -> None:
    told = {"argv": sys.argv[1:], "environ": dict(os.environ), "pid": os.getpid()}
    if "orphan" in MODE:
        middle = (
            "import subprocess as s, sys; "
            "quiet = {'stdout': s.DEVNULL, 'stderr': s.DEVNULL, 'start_new_session': True}; "
            "print(s.Popen([sys.executable, '-c', sys.argv[1]], **quiet).pid)"
        )
        done = subprocess.run([sys.executable, "-c", middle, SLEEPER], capture_output=True, text=True)
        told["orphan"] = int(done.stdout)
    if "shm" in MODE:
        path = f"/dev/shm/stub-{os.getpid()}"
        with open(path, "w+b") as file:
            file.write(b"x" * 4096)
            file.flush()
            told["mapped"] = path
            globals()["kept"] = mmap.mmap(file.fileno(), 4096)
    with open(os.environ["STUB_OUT"] + ".part", "w", encoding="utf-8") as out:
        json.dump(told, out)
    os.replace(os.environ["STUB_OUT"] + ".part", os.environ["STUB_OUT"])
    if "deaf" in MODE:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    for line in LINES:
        print(line, flush=True)
    if "die" in MODE:
        print("RuntimeError: No WNA16 MoE backend supports the deployment configuration.", flush=True)
        sys.exit(1)
    if "stall" in MODE:
        time.sleep(600)
    print("INFO [launcher.py:1] Application startup complete.", flush=True)
    ThreadingHTTPServer(("127.0.0.1", int(option("--port"))), Handler).serve_forever()


main()
