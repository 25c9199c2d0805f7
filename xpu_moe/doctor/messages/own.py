"""Exceptions of this project that can end a server: each message says itself what is wrong. The last row takes those
that have no row of their own."""

from __future__ import annotations

from xpu_moe.doctor.messages.message import STALLERS, STOPPERS, Message, row

_SAYS = r": (?P<says>\S.{2,110})"

MESSAGES: tuple[Message, ...] = (
    row(
        "own-value-refused", ("env.read.BadValue",), "cause", "error", "env.{name}",
        r"xpu_moe\.env\.read\.BadValue: (?P<says>(?P<name>[A-Z][A-Z0-9_]+)=.{1,110})",
        "a variable of ours has a value that it does not accept: {says}",
        "A value that does not parse is never replaced by the default.",
        "unset {name}, or set an accepted value: python -m xpu_moe.env --explain {name} says which",
        "xpu_moe/env/read.py",
    ),
    row(
        "own-no-kernel", ("NoBackend", "Unservable"), "cause", "error", "model.quantization_config",
        rf"xpu_moe\.[\w.]+\.(?:NoBackend|Unservable){_SAYS}",
        "no kernel of ours serves this model here: {says}",
        "It names the kernels and why each refuses.",
        "leave away a kernel that was asked for by name (XPU_MOE_BACKEND, --additional-config); --quantization inc "
        "(or gptq) leaves the checkpoint to vLLM's own kernels",
        "xpu_moe/ops/contract.py; xpu_moe/serving/choice.py", also=("env.XPU_MOE_BACKEND",),
    ),
    row(
        "own-option", ("BadOption", "UnknownHook"), "cause", "error", "plan.additional_config",
        rf"xpu_moe\.[\w.]+\.(?:BadOption|UnknownHook){_SAYS}",
        "our plugin refuses its options: {says}",
        "They are the object xpu_moe in --additional-config.",
        "mend the named entry, or leave --additional-config away",
        "xpu_moe/serving/options.py",
    ),
    row(
        "own-argument", ("BadArgument",), "cause", "error", "python.packages.vllm",
        rf"xpu_moe\.[\w.]+\.BadArgument{_SAYS}",
        "an operator of ours was called with what it does not take: {says}",
        "Mostly vLLM is of a release that the plugin was not made for.",
        "install vLLM 0.26.x or 0.32.x: scripts/serve_minimax.sh --install-plan prints the commands",
        "xpu_moe/ops/errors.py",
    ),
    row(
        "own-cache", ("UnsafeCache",), "cause", "error", "env.XPU_MOE_CACHE",
        rf"xpu_moe\.[\w.]+\.UnsafeCache{_SAYS}",
        "the cache folder cannot be used: {says}",
        "Code is loaded from it, so that it must belong to this user alone.",
        "export XPU_MOE_CACHE=FOLDER with a folder of yours that others cannot write",
        "xpu_moe/cache.py",
    ),
    row(
        "own-collectives", ("NoCollectives",), "cause", "error", "python.packages.torch",
        rf"xpu_moe\.[\w.]+\.NoCollectives{_SAYS}",
        "there is no collective library: {says}",
        "Several cards need one in this torch.",
        "take the environment that scripts/serve_minimax.sh makes; --install-plan prints the commands",
        "xpu_moe/comm/group.py",
    ),
    row(
        "own-timeout", ("CollectiveTimeout",), "symptom", "error", "peer_access",
        rf"xpu_moe\.[\w.]+\.CollectiveTimeout{_SAYS}",
        "the ranks did not come together in time: {says}",
        "A rank is missing or stands still.",
        "python -m xpu_moe.probe allreduce --world N",
        "xpu_moe/comm/group.py", blames=STOPPERS, asked=STALLERS,
    ),
)  # fmt: skip

# tried after all other rows
REST: tuple[Message, ...] = (
    row(
        "own-refusal", ("xpu_moe.",), "cause", "error", "xpu_moe",
        rf"(?:^|[\s\]])xpu_moe\.(?:\w+\.)+(?P<type>[A-Z]\w+){_SAYS}",
        "{type} of ours: {says}",
        "The message itself is the cause.",
        "do what it says; python -m xpu_moe.doctor looks at the machine",
        "xpu_moe",
    ),
)  # fmt: skip
