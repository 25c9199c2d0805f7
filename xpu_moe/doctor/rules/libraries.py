"""Runtimes: two copies or generations in one process, packages that shadow others, versions known to be bad."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from xpu_moe.doctor.finding import Severity
from xpu_moe.doctor.rules.base import Context, Row, Rule
from xpu_moe.doctor.text import quoted, shown
from xpu_moe.doctor.versions import parsed, within

Hit = dict[str, Any]
_ONE_EACH = re.compile(
    r"lib(?:sycl|ccl|ze_(?:loader|intel_gpu|validation_layer|tracing_layer)|ur_\w+|umf|nccl|rccl|mpi|"
    r"torch(?:_\w+)?|c10(?:_\w+)?|pti_view|nvshmem_host|cudart)\Z"
)
# torch -> generation of libsycl that it links (B70 field notes 10)
_TORCH_SYCL = (("<2.12", "8"), (">=2.13", "9"))
_LEGACY = ("intel-extension-for-pytorch", "oneccl-bind-pt", "torch-ccl")


@dataclass(frozen=True)
class Known:
    """A version range known to be bad. `cards`: keys of the card table, empty = any; `kernel`: a range, "" = any."""

    component: str
    ranges: str
    about: str
    severity: Severity
    says: str
    fix: str
    source: str
    cards: tuple[str, ...] = ()
    several: bool = False
    kernel: str = ""
    unless_env: str = ""


KNOWN: tuple[Known, ...] = (
    Known("oneccl", ">=2022.0,<2022.2", "libraries", "warn", "its default all-reduce hangs on B60",
          "export CCL_ALLREDUCE=ring (about 30 % slower), or install oneCCL 2021.15 to 2021.17",
          "uxlfoundation/oneCCL#215; vllm-project/vllm#50545", ("b60",), True, unless_env="CCL_ALLREDUCE"),
    Known("vllm", "==0.17", "python.packages.vllm", "warn",
          "general protection fault with several cards on kernel 6.17",
          "install vLLM 0.22 or later", "vllm-project/vllm#41663", several=True, kernel="==6.17"),
    Known("torch", "==2.9", "python.packages.torch", "warn",
          "averaging all-reduces of tiny tensors were wrong on B60",
          "install torch 2.11 or later; sum, then divide", "intel/torch-xpu-ops#3020", ("b60",), True),
    Known("llm-scaler", "==1.4", "python.packages.llm-scaler", "warn", "DEVICE_LOST while profiling",
          "take another release of the image", "intel/llm-scaler#424"),
    Known("llm-scaler", "==0.21", "python.packages.llm-scaler", "warn", "DEVICE_LOST while profiling (b2)",
          "take another release of the image", "intel/llm-scaler#595"),
    Known("llm-scaler", "==0.26", "python.packages.llm-scaler", "warn",
          "TP2 ended in DEVICE_LOST with b2; b1 was fine",
          "take b1", "intel/llm-scaler#723", several=True),
)  # fmt: skip


def _copies(context: Context) -> list[Hit]:
    """The same library twice: by generation (`libsycl.so.8` beside `.9`), or from two places."""
    seen: dict[str, set[tuple[str, str, str]]] = defaultdict(set)
    for library in context.facts.libraries or ():
        if _ONE_EACH.match(library.base or ""):
            seen[library.base].add((library.generation, _folder(library.path), library.version or ""))
    hits = []
    for base, copies in seen.items():
        generations = {generation for generation, _, _ in copies if generation}
        folders = {folder for _, folder, _ in copies if folder}
        versions = {version for _, _, version in copies if version}
        if len(generations) > 1 or len(folders) > 1 or len(versions) > 1:
            same = len(generations) < 2 and len(versions) < 2
            where = ", ".join(
                sorted(f"{base} {version or generation} in {folder or '?'}" for generation, folder, version in copies)
            )
            hits.append(
                {"base": base, "where": where, "severity": "warn" if same and len(copies) > 1 and versions else "error"}
            )
    return hits


def _folder(path: str | None) -> str:
    return path.rpartition("/")[0] if path else ""


def _wrong_sycl(context: Context) -> Hit | None:
    """One libsycl, but not the generation that this torch links."""
    torch, library = context.package("torch"), context.facts.library("libsycl")
    if not context.xpu or library is None or torch is None or "xpu" not in torch:
        return None
    generations = {row.generation for row in context.facts.libraries or () if row.base == "libsycl"}
    wanted = next((generation for ranges, generation in _TORCH_SYCL if within(torch, ranges)), None)
    if wanted is None or not library.generation or wanted in generations:
        return None
    return {"torch": torch, "wanted": wanted, "have": library.name}


def _plain_triton(context: Context) -> Hit | None:
    if not context.xpu or context.package("triton") is None or "xpu" in (context.package("triton") or ""):
        return None  # triton==…+xpu is the Intel one under the plain name
    return {
        "beside": " beside triton-xpu" if context.version("triton-xpu") else "",
        "version": context.package("triton"),
    }


def _known_bad(context: Context) -> list[Hit]:
    hits = []
    kinds = {card.key for card in map(context.kind, context.cards) if card}
    for row in KNOWN:
        if not context.has(row.component, row.ranges) or (row.cards and not kinds.intersection(row.cards)):
            continue
        if (row.several and not context.several) or context.device == "cpu" or (not row.cards and not context.xpu):
            continue
        if row.kernel and not within(context.os.kernel, row.kernel):
            continue
        if row.unless_env and context.facts.value(row.unless_env):
            continue
        hits.append({"component": row.component, "version": context.version(row.component), "about": row.about,
                     "says": row.says, "fix": row.fix, "source": row.source, "severity": row.severity})  # fmt: skip
    return hits


def _old_driver(context: Context) -> Hit | None:
    """Kernels of 0.1.10 and later want compute-runtime 26.18."""
    if context.xpu and context.has("xpu-kernels", ">=0.1.10") and context.has("compute-runtime", "<26.18"):
        return {"kernels": context.version("xpu-kernels"), "driver": context.version("compute-runtime")}
    return None


def _legacy(context: Context) -> list[Hit]:
    return [{"name": name} for name in _LEGACY if context.xpu and context.package(name)]


def _python(context: Context) -> Hit | None:
    version = parsed(context.facts.python_version)
    wanted = context.xpu and "xpu" in (context.package("torch") or "") and not context.package("vllm-xpu-kernels")
    return {"version": context.facts.python_version} if wanted and version and version[:2] != (3, 12) else None


def _wrong_torch(context: Context) -> Hit | None:
    """A torch of another device than the plan's; without a plan, of another than the cards of this machine."""
    torch, planned = context.package("torch") or "", context.plan.device
    kinds = {gpu.runtime for gpu in context.facts.present or () if gpu.runtime in ("xpu", "cuda")}
    device = planned or (kinds.pop() if len(kinds) == 1 else None)
    built = re.search(r"\+(xpu|cu|cpu|rocm)", torch)
    want = {"xpu": "xpu", "cuda": "cu"}.get(device or "")
    if not want or built is None or built.group(1) == want:
        return None
    where = f"in a plan for {device}" if planned else f"on a machine with cards for {device}"
    return {"torch": torch, "device": device, "where": where, "severity": "error" if planned else "warn"}


def _roots(context: Context) -> list[Hit]:
    """CCL_ROOT or ONEAPI_ROOT of a sourced oneAPI beside libraries that come from elsewhere."""
    hits = []
    for name in ("CCL_ROOT", "ONEAPI_ROOT"):
        root = context.facts.value(name)
        library = context.facts.library("libccl")
        if context.xpu and root and (library is None or not library.path or not _under(library.path, root)):
            hits.append({"name": name, "value": shown(root), "quoted": quoted(name)})
    return hits


def _foreign_parts(context: Context) -> list[Hit]:
    """Plug-ins or kernels of an installed oneAPI for a oneCCL that comes from elsewhere."""
    library = context.facts.library("libccl")
    hits: list[Hit] = []
    for name in ("FI_PROVIDER_PATH", "CCL_KERNEL_PATH"):
        value = context.facts.value(name) or ""
        known = context.xpu and library is not None and library.path and "oneapi" in value.lower()
        if known and library is not None and "oneapi" not in (library.path or "").lower():
            hits.append({"name": name, "value": shown(value), "have": library.path})
    return hits


def _gone(context: Context) -> list[Hit]:
    """Variables whose folder was looked for and is not there."""
    env = context.facts.env or {}
    return [{"name": name, "value": shown(env[name])} for name in context.facts.paths_missing if name in env]


def _under(path: str, root: str) -> bool:
    return path.strip("/").startswith(root.strip("/") + "/")


def _search_path(context: Context) -> list[Hit]:
    """LD_LIBRARY_PATH and LD_PRELOAD that bring another oneAPI generation than the libsycl that is loaded."""
    library = context.facts.library("libsycl")
    version = parsed(library.version) if library else None
    hits: list[Hit] = []
    if not context.xpu or library is None or version is None:
        return hits
    for name in ("LD_LIBRARY_PATH", "LD_PRELOAD"):
        for part in (context.facts.value(name) or "").replace(" ", ":").split(":"):
            year = re.search(r"/(20\d\d)(?:\.\d+)*(?:/|\Z)", part)
            if "oneapi" in part.lower() and year and int(year.group(1)) != version[0]:
                hits.append({"name": name, "part": shown(part), "have": library.version})
                break
    return hits


def _loader_path(context: Context) -> Hit | None:
    value = context.facts.value("CCL_ZE_LIBRARY_PATH")
    return {"value": shown(value)} if context.xpu and value else None


RULE = Rule(
    "two copies or generations of a runtime, versions known to be bad",
    "One process holds one oneAPI generation and one copy of each library.",
    (
        Row(
            "library.copies", "error", "libraries",
            "{base} is there more than once",
            "Two copies or generations in one process crash or do not import: {where}.",
            "unset LD_LIBRARY_PATH; do not source setvars.sh of another oneAPI; keep the environment's own lib folder",
            "vllm-project/vllm#49924; intel/llm-scaler#665", _copies,
        ),
        Row(
            "library.sycl-generation", "error", "libraries",
            "torch {torch} links libsycl.so.{wanted}, {have} is there",
            "An extension of another oneAPI generation dies at import (__sycl_register_lib).",
            "install the intel-sycl-rt that this torch pins",
            "B70 field notes 10", _wrong_sycl,
        ),
        Row(
            "library.known-bad", "warn", "{about}",
            "{component} {version}: {says}",
            "Reported for these cards.",
            "{fix}",
            "table of versions", _known_bad,
        ),
        Row(
            "library.driver-old", "warn", "libraries",
            "xpu-kernels {kernels} on compute-runtime {driver}",
            "From 0.1.10 on the kernels want compute-runtime 26.18 or later.",
            "install compute-runtime 26.18 or later",
            "B70 field notes 10", _old_driver,
        ),
        Row(
            "library.triton", "warn", "python.packages.triton",
            "plain triton {version}{beside} on XPU",
            "It shadows triton-xpu, and has no Intel backend.",
            "pip uninstall triton; pip install --force-reinstall triton-xpu",
            "vLLM XPU installation guide", _plain_triton,
        ),
        Row(
            "library.legacy", "warn", "python.packages.{name}",
            "{name} is retired",
            "torch has XPU and XCCL itself; the old extension brings a second runtime.",
            "pip uninstall {name}",
            "torch-ccl; B70 field notes 10", _legacy,
        ),
        Row(
            "library.python", "warn", "python.version",
            "Python {version}: no XPU kernels for it",
            "Wheels of vllm-xpu-kernels exist for Python 3.12 only.",
            "make the environment with Python 3.12",
            "B70 field notes 10", _python,
        ),
        Row(
            "library.torch-device", "error", "python.packages.torch",
            "torch {torch} {where}",
            "This build of torch cannot drive these cards.",
            "take the environment that scripts/serve_minimax.sh makes; scripts/serve_minimax.sh --install-plan "
            "--device {device} prints the commands",
            "PyTorch builds", _wrong_torch,
        ),
        Row(
            "library.root", "warn", "env.{name}",
            "{name} points to another oneAPI",
            "It pairs oneCCL's kernels with a foreign library and leads to two generations: {value}.",
            "unset {quoted}",
            "oneCCL source; vllm-project/vllm#49924", _roots,
        ),
        Row(
            "library.foreign-parts", "warn", "env.{name}",
            "{name} belongs to another oneCCL",
            "{value} has parts of an installed oneAPI, the oneCCL in use is {have}: no provider, or foreign kernels.",
            "unset {name}",
            "libfabric documentation; oneCCL source", _foreign_parts,
        ),
        Row(
            "library.path-gone", "error", "env.{name}",
            "{name} names a folder that is not there",
            "{value}: what should be found in it is missing, so the start fails.",
            "unset {name}",
            "libfabric documentation; oneCCL source", _gone,
        ),
        Row(
            "library.search-path", "warn", "env.{name}",
            "{name} leads to another oneAPI generation",
            "{part} comes first, the environment's libsycl is {have}.",
            "unset {name}",
            "vllm-project/vllm#49924", _search_path,
        ),
        Row(
            "library.loader-path", "warn", "env.CCL_ZE_LIBRARY_PATH",
            "another Level Zero loader is named",
            "A second loader in one process mixes ABIs.",
            "unset CCL_ZE_LIBRARY_PATH",
            "oneCCL documentation", _loader_path,
        ),
    ),
)  # fmt: skip
