"""What a reader gets when the server is ready: a curl line to paste, the bench line; and word to systemd."""

from __future__ import annotations

import contextlib
import json
import shlex
import socket

from xpu_moe.env import read
from xpu_moe.launch.plan import LaunchPlan


def curl(plan: LaunchPlan, with_key: bool) -> str:
    """A line to paste; the key stays a variable."""
    body = json.dumps({"model": plan.name, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 32})
    key = ' -H "Authorization: Bearer $VLLM_API_KEY"' if with_key else ""
    url = shlex.quote(f"{plan.url}/v1/chat/completions")
    return f"curl -s {url} -H 'Content-Type: application/json'{key} -d {shlex.quote(body)}"


def bench(plan: LaunchPlan) -> str:
    """vLLM's own bench against this server, with the lengths that were asked for; "" where none was."""
    lengths = [plan.value(name) for name in ("input_len", "output_len", "num_prompts")]
    if not any(lengths):
        return ""
    words = [
        plan.command[0], "bench", "serve", "--backend", "vllm", "--base-url", plan.url, "--model", plan.name,
        "--tokenizer", str(plan.model.path), "--endpoint", "/v1/completions", "--dataset-name", "random",
        "--random-input-len", str(lengths[0] or 128), "--random-output-len", str(lengths[1] or 128),
        "--num-prompts", str(lengths[2] or 16), "--temperature", "0", "--ready-check-timeout-sec", "30",
    ]  # fmt: skip
    return shlex.join(words)


def notify(state: str) -> None:
    """Tell systemd (Type=notify) `READY=1` or `STOPPING=1`; nothing happens where nobody listens."""
    address = read.text("NOTIFY_SOCKET")
    if not address:
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
        out.sendto(state.encode(), "\0" + address[1:] if address.startswith("@") else address)
