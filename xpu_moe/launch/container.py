"""`--print-container`: one command line for podman or docker that has all that the doctor asks of a container.

Rows of data; `facts_of` reads the line back into the doctor's facts, which the tests judge with the doctor's own rules.
"""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Sequence
from typing import Any

from xpu_moe.launch.plan import LaunchPlan
from xpu_moe.launch.secrets import Masker, masked

# The images that the vLLM project publishes; each holds vLLM, and this package is added to it.
IMAGES = {
    "xpu": "docker.io/vllm/vllm-openai-xpu:latest",
    "cuda": "docker.io/vllm/vllm-openai:latest",
    "cpu": "public.ecr.aws/q9t5s3a7/vllm-cpu-release-repo:latest",
}
SHM = "16g"  # vLLM's message queue and the collectives' shared memory; the runtime's own default is 64 MiB
_INSIDE, _MODEL, _CACHE = "/opt/xpu_moe", "/model", "/cache"


def words(plan: LaunchPlan, project: str, cache: str, masker: Masker) -> list[str]:
    """The command line as words (docker's; podman takes the same)."""
    port = plan.value("port")
    devices: dict[str, list[str]] = {
        # by-path: oneCCL finds the render node of a card there; SYS_PTRACE: ranks take each other's handles.
        "xpu": [
            "--device", "/dev/dri:/dev/dri", "--volume", "/dev/dri/by-path:/dev/dri/by-path:ro",
            "--cap-add", "SYS_PTRACE", "--group-add", "RENDER_GROUP",
        ],
        "cuda": ["--gpus", "all", "--cap-add", "SYS_PTRACE"],
        "cpu": ["--cap-add", "SYS_NICE"],
    }  # fmt: skip
    environment: list[str] = []
    for row in plan.environment:
        if row.value is not None and row.name != "XPU_MOE_REPORT" and not row.value.startswith(cache):
            environment += ["--env", f"{row.name}={masker.value(row.name, row.value)}"]
    for name in plan.secrets or {"VLLM_API_KEY": ""}:
        environment += ["--env", name]  # without a value: taken from the caller's environment, never printed
    flags = [word for name in _FORWARDED if (word := _flag(plan, name))]
    if plan.profile != "default":
        flags.insert(0, ("--profile", plan.profile))
    mounts, model = _model(plan)
    return [
        "run", "--rm", "--init", "--shm-size", SHM, *devices[plan.device.kind],
        "--security-opt", "no-new-privileges", "--publish", f"127.0.0.1:{port}:{port}",
        *mounts, *_read_only(project, _INSIDE),
        "--volume", f"xpu_moe_cache:{_CACHE}", "--env", f"XPU_MOE_CACHE={_CACHE}",
        *environment,
        "--entrypoint", f"{_INSIDE}/scripts/serve_minimax.sh", IMAGES[plan.device.kind],
        *model, "--device", plan.device.kind, "--host", "0.0.0.0", "--port", str(port),
        *(word for pair in flags for word in pair), *(("--", *masked(plan.extra, masker)) if plan.extra else ()),
    ]  # fmt: skip


def _model(plan: LaunchPlan) -> tuple[list[str], list[str]]:
    """Mount words and launcher words for the model: a snapshot's links lead out of it, the demo is written inside."""
    if plan.demo:
        return [], ["--demo"]
    hub = plan.model.hub_folder
    if hub is None:
        return _read_only(str(plan.model.path), _MODEL), ["--model", _MODEL]
    return _read_only(str(hub), _MODEL), ["--model", f"{_MODEL}/snapshots/{plan.model.path.name}"]


def _read_only(source: str, target: str) -> list[str]:
    """A bind mount; --volume splits at colons, so a path with one is spelt as a quoted CSV field of --mount."""
    if ":" not in source:
        return ["--volume", f"{source}:{target}:ro"]
    field = '"' + f"src={source}".replace('"', '""') + '"'
    return ["--mount", f"type=bind,{field},dst={target},readonly"]


# Settings that are said again inside; host and port stand in the line already.
_FORWARDED = (
    "tp", "pp", "dcp", "dtype", "max_model_len", "max_batched_tokens", "max_num_seqs", "block_size",
    "kv_cache_memory_bytes", "kv_cache_dtype", "attention_backend", "tool_call_parser", "reasoning_parser", "graph",
    "served_model_name", "backend",
)  # fmt: skip


def _flag(plan: LaunchPlan, name: str) -> tuple[str, str] | None:
    setting = plan.settings[name]
    if setting.value in (None, "") or (setting.origin == "default" and name != "served_model_name"):
        return None
    return setting.row.flag, str(setting.value)


def text(plan: LaunchPlan, project: str, cache: str, masker: Masker) -> str:
    """The line with what has to be known beside it."""
    line = shlex.join(["podman", *words(plan, project, cache, masker)])
    notes = ["# docker takes the same words."]
    if plan.device.kind == "xpu":
        line = line.replace("RENDER_GROUP", '"$(stat -c %g /dev/dri/renderD128)"')
    return "\n".join([*notes, line])


def facts_of(line: Sequence[str], kind: str) -> dict[str, Any]:
    """What the doctor would see inside a container that is started with these words (its `os` object)."""
    pairs = list(itertools.pairwise(line))
    shm = next((value for flag, value in pairs if flag == "--shm-size"), "64m")
    size = int(shm[:-1]) * {"m": 1 << 20, "g": 1 << 30}[shm[-1]]
    capabilities = [value for flag, value in pairs if flag == "--cap-add"]
    by_path = any(flag == "--volume" and value.startswith("/dev/dri/by-path:") for flag, value in pairs)
    found: dict[str, Any] = {"in_container": True, "shm_bytes": size, "capabilities": capabilities, "seccomp": True}
    return {**found, "dri_by_path": by_path} if kind == "xpu" else found
