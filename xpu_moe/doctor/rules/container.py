"""Container, shared memory, capabilities, device nodes."""

from __future__ import annotations

from typing import Any

from xpu_moe.doctor.rules.base import Context, Row, Rule
from xpu_moe.env.parse import interpret

GIB = 1 << 30
_WANTED_SHM = 8 * GIB  # container: what Intel's documents ask for
_HOST_SHM = GIB


def _multi(context: Context) -> bool:
    return context.xpu and context.several


def exchange(context: Context) -> str | None:
    """The exchange that the user asked for, None where unset or refused by oneCCL."""
    value = context.facts.value("CCL_ZE_IPC_EXCHANGE")
    return interpret("CCL_ZE_IPC_EXCHANGE", value).taken if value is not None else None


def _shm(context: Context) -> dict[str, Any] | None:
    size = context.os.shm_bytes
    accelerated = context.device in ("xpu", "cuda")
    if size is None or not accelerated or not context.several:
        return None
    least = _HOST_SHM if context.os.in_container is False else _WANTED_SHM * 9 // 10
    if size >= least:
        return None
    return {"mib": size >> 20, "severity": "error" if size < 1 << 20 else "warn"}


def _by_path(context: Context) -> dict[str, Any] | None:
    """drmfd opens render nodes by path; whether it is used depends on pidfd."""
    if not _multi(context) or context.os.dri_by_path is not False or (exchange(context) == "drmfd" and context.pidfd):
        return None
    if context.pidfd is False:
        return {"severity": "error", "says": "pidfd is not allowed either, so the ranks cannot share memory handles."}
    return {"says": "It is what is left when pidfd is refused."}


def _drmfd(context: Context) -> bool:
    return _multi(context) and context.os.dri_by_path is False and exchange(context) == "drmfd" and bool(context.pidfd)


def _overridden(context: Context) -> dict[str, Any] | None:
    chosen = exchange(context)
    if not _multi(context) or context.pidfd is not False or chosen not in ("sockets", "pidfd"):
        return None
    return {"chosen": chosen}


def _ptrace(context: Context) -> dict[str, Any] | None:
    if not _multi(context) or context.pidfd is not False or exchange(context) in ("drmfd", "sockets", "pidfd"):
        return None
    # Docker grants pidfd_getfd with SYS_PTRACE; on a host Yama's scope is what forbids it
    if context.os.in_container is False:
        return {"severity": "info", "fix": "sudo sysctl kernel.yama.ptrace_scope=0"}
    return {"fix": "run the container with --cap-add SYS_PTRACE"}


def _no_access(context: Context) -> bool:
    return context.xpu and context.os.dri_access is False


def _yama(context: Context) -> dict[str, Any] | None:
    scope = context.os.yama_ptrace_scope
    if not _multi(context) or context.os.in_container is not False or context.pidfd is not False or not scope:
        return None
    return {"scope": scope} if exchange(context) is None else {"scope": scope, "severity": "info"}


RULE = Rule(
    "container, shared memory, capability, device nodes",
    "What ranks need to share memory: /dev/shm, handles by pidfd (SYS_PTRACE), render nodes by path.",
    (
        Row(
            "container.shm", "warn", "os.shm_bytes",
            "/dev/shm has {mib} MiB",
            "vLLM's message queue and the collective library put buffers there; Docker's default of 64 MiB fails.",
            "run the container with --ipc=host or --shm-size=16g",
            "vllm-project/vllm#27313", _shm,
        ),
        Row(
            "container.by-path", "warn", "os.dri_by_path",
            "/dev/dri/by-path is not there",
            "The drmfd exchange finds cards by that folder. {says}",
            "run the container with -v /dev/dri/by-path:/dev/dri/by-path --cap-add SYS_PTRACE",
            "uxlfoundation/oneCCL#217", _by_path,
        ),
        Row(
            "container.drmfd", "error", "env.CCL_ZE_IPC_EXCHANGE",
            "drmfd is asked for, /dev/dri/by-path is missing",
            "The exchange cannot open the cards' render nodes.",
            "unset CCL_ZE_IPC_EXCHANGE",
            "uxlfoundation/oneCCL#217", _drmfd,
        ),
        Row(
            "container.exchange-overridden", "warn", "env.CCL_ZE_IPC_EXCHANGE",
            "{chosen} will be overridden by drmfd",
            "pidfd_getfd is not allowed here; oneCCL's self-test then switches to drmfd, explicit value or not.",
            "unset CCL_ZE_IPC_EXCHANGE; run the container with --cap-add SYS_PTRACE",
            "uxlfoundation/oneCCL#213", _overridden,
        ),
        Row(
            "container.dri-access", "error", "os.dri_access",
            "the render nodes may not be opened",
            "Only members of group render (and video) may open /dev/dri/render*: no card is usable.",
            "sudo usermod -aG render,video $USER, then log in again (container: --group-add with render's number)",
            "B70 field notes 11", _no_access,
        ),
        Row(
            "container.ptrace", "warn", "os.capabilities",
            "SYS_PTRACE is missing",
            "Without it pidfd_getfd is refused (seccomp, Yama) and the exchange falls back to drmfd.",
            "{fix}",
            "B70 field notes 2", _ptrace,
        ),
        Row(
            "container.yama", "warn", "os.yama_ptrace_scope",
            "kernel.yama.ptrace_scope is {scope}",
            "Ranks may not take each other's handles by pidfd; the exchange falls back to drmfd.",
            "sudo sysctl kernel.yama.ptrace_scope=0",
            "B70 field notes 2; Yama documentation", _yama,
        ),
    ),
)  # fmt: skip
