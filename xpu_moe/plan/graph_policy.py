"""Are graphs allowed, and how? Off where unproved: wrong tokens are worse than slow ones.

decision = decide(Situation("xpu", vllm="0.26.0", torch="2.11.0+xpu", oneccl="2022.1.2", world=4, probe=True))
decision.on                      # False, with decision.reason, unless every need is met and the probe passed
decision.compilation_config()    # for --compilation-config; explicit in both cases where vLLM has graphs on
decision.environment             # name -> value; None = take it away
decision.hooks                   # names of xpu_moe.serving's hooks to install
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from xpu_moe.env.versions import satisfies
from xpu_moe.plan.graph_needs import NEEDS

CAPTURE_SIZES = (1, 2, 4)  # 16 ended in OUT_OF_RESOURCES (vllm-xpu-kernels#509); 512 in '!!!!' (llm-scaler#698)
POOL_NEEDS_PINNED_KV = True  # 1.15 GiB of graphs left 0.05 GiB of KV with automatic sizing (B70 note)
SKIP_ESTIMATE = "skip_graph_memory_estimate"
COMMUNICATOR = "graph_communicator"


@dataclass(frozen=True)
class Situation:
    """What decides. Versions None = unknown. `probe`: did the replay probe pass here? None = it has not run.

    `hooks`: names that the plugin has. `versions` may hold further components (`compute-runtime`, `loader`, `oneapi`,
    `xpu-kernels`).
    """

    device: str
    vllm: str | None = None
    torch: str | None = None
    oneccl: str | None = None
    attention: str | None = None
    world: int = 1
    probe: bool | None = None
    int4_moe: bool = True
    hooks: frozenset[str] = frozenset()
    wanted: bool | None = None
    environ: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    versions: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    def version(self, component: str) -> str | None:
        known = {"vllm": self.vllm, "torch": self.torch, "oneccl": self.oneccl}
        return known[component] if component in known else self.versions.get(component)


@dataclass(frozen=True)
class Decision:
    """`mode` is vLLM's cudagraph_mode; None leaves vLLM alone. `refused`: each reason why graphs are off."""

    mode: str | None
    reason: str
    capture_sizes: tuple[int, ...] = ()
    splitting_ops: tuple[str, ...] = ()
    environment: Mapping[str, str | None] = field(default_factory=lambda: MappingProxyType({}))
    hooks: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    pin_kv: bool = False
    inductor_partition: bool = False
    compile_sizes: tuple[int, ...] = ()

    @property
    def on(self) -> bool:
        return self.mode not in (None, "NONE")

    def compilation_config(self) -> dict[str, Any]:
        """Keys for vLLM's --compilation-config; empty when vLLM is left alone."""
        if self.mode is None:
            return {}
        found: dict[str, Any] = {"cudagraph_mode": self.mode}
        if self.on and self.capture_sizes:
            found["cudagraph_capture_sizes"] = list(self.capture_sizes)
        if self.splitting_ops:
            found["splitting_ops"] = list(self.splitting_ops)
        if self.inductor_partition:
            found["use_inductor_graph_partition"] = True
        if self.compile_sizes:
            found["compile_sizes"] = list(self.compile_sizes)
        return found

    def as_dict(self) -> dict[str, Any]:
        return {
            "on": self.on,
            "mode": self.mode,
            "reason": self.reason,
            "refused": list(self.refused),
            "compilation_config": self.compilation_config(),
            "environment": dict(self.environment),
            "hooks": list(self.hooks),
            "pin_kv": self.pin_kv,
        }


def decide(situation: Situation) -> Decision:
    """The decision for one launch, with its reason."""
    if situation.device == "cpu":
        return Decision("NONE", "the CPU has no graphs: vLLM sets the mode to NONE itself")
    if situation.device == "cuda":
        return _cuda(situation)
    if situation.device != "xpu":
        return Decision("NONE", f"no policy for device {situation.device!r}: off where unproved")
    refused = _refusals(situation)
    if refused:
        return _off(situation, refused)
    return _on(situation)


def _cuda(situation: Situation) -> Decision:
    if situation.wanted is False:
        return Decision("NONE", "graphs are off as asked")
    return Decision(None, "CUDA graphs are vLLM's own default there and are proved daily: left alone")


def _refusals(situation: Situation) -> tuple[str, ...]:
    """Every reason against graphs on XPU, the strongest first."""
    found = []
    if situation.wanted is False:
        found.append("as asked")
    for component in ("vllm", "torch"):
        if situation.version(component) is None:
            found.append(f"the version of {component} is unknown")
    if situation.world > 1 and situation.oneccl is None:
        found.append("the version of oneCCL is unknown")
    for need in NEEDS:
        if need.severity == "error" or need.int4_moe:
            have = situation.version(need.component)
            if have is not None and _applies(need, situation) and satisfies(have, need.ranges):
                found.append(f"{need.component} {have}: {need.says} ({need.source})")
    for name, why in _hooks(situation).items():
        if name not in situation.hooks:
            found.append(f"the plugin has no hook {name}: {why}")
    if situation.environ.get("SYCL_UR_USE_LEVEL_ZERO_V2") == "0":
        found.append("SYCL_UR_USE_LEVEL_ZERO_V2=0: the old adapter cannot record")
    if situation.probe is None:
        found.append("the replay probe has not passed on this machine (python -m xpu_moe.probe allreduce)")
    elif not situation.probe:
        found.append("the replay probe failed on this machine")
    return tuple(found)


def _applies(need: Any, situation: Situation) -> bool:
    if (need.several and situation.world < 2) or (need.int4_moe and not situation.int4_moe):
        return False
    return not need.torch or (situation.torch is not None and satisfies(situation.torch, need.torch))


def _hooks(situation: Situation) -> dict[str, str]:
    """Hooks that a graph needs on this vLLM: name -> why."""
    found: dict[str, str] = {}
    if situation.vllm is None:
        return found
    if situation.world > 1 and satisfies(situation.vllm, "<0.26"):
        found[COMMUNICATOR] = "graph capture accepts a CUDA communicator only"
    if satisfies(situation.vllm, ">=0.31"):
        found[SKIP_ESTIMATE] = "this vLLM captures once more to estimate the graphs' memory"
    return found


def _off(situation: Situation, refused: tuple[str, ...]) -> Decision:
    """Explicitly off: vLLM from 0.31 on has XPU graphs on by default; before, their variable must go."""
    environment: dict[str, str | None] = {}
    if situation.vllm is not None and satisfies(situation.vllm, "<0.31"):
        environment["VLLM_XPU_ENABLE_XPU_GRAPH"] = None
    return Decision("NONE", f"graphs are off: {refused[0]}", environment=environment, refused=refused)


def _on(situation: Situation) -> Decision:
    vllm = situation.vllm or ""
    flash = (situation.attention or "FLASH_ATTN").upper() in ("FLASH_ATTN", "AUTO")
    environment: dict[str, str | None] = {"SYCL_UR_USE_LEVEL_ZERO_V2": None}
    if satisfies(vllm, "<0.31"):
        environment["VLLM_XPU_ENABLE_XPU_GRAPH"] = "1"
    if situation.world > 1:
        environment["CCL_SYCL_FORCE_RECORDING_PATH"] = "1"
    how = (
        "PIECEWISE: the FMHA kernels of FLASH_ATTN cannot be captured, so attention stays outside"
        if flash
        else f"FULL_DECODE_ONLY: {situation.attention} captures"
    )
    return Decision(
        "PIECEWISE" if flash else "FULL_DECODE_ONLY", f"graphs are on, the replay probe passed here; {how}",
        CAPTURE_SIZES, (), environment, tuple(_hooks(situation)), (), POOL_NEEDS_PINNED_KV, flash, (1,),
    )  # fmt: skip
