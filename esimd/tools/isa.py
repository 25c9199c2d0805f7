"""SPIR-V to machine code with ocloc, and what that says: registers, spills, loops, messages, issue slots."""

from __future__ import annotations

import re
import struct
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from xpu_moe.esimd.tools import programs, rewrite

# ocloc's device name -> iga64's platform. Debian 12's ocloc knows PVC only, which has Xe2's vector width and messages,
# and another code generator; the fetched one (nullcard/packages.py) knows all of them.
PLATFORMS = {"pvc": "xehpc", "bmg": "xe2", "bmg-g21": "xe2", "bmg-g31": "xe2"}
ISSUE_WIDTH = 64  # bytes that an instruction's widest operand moves in one slot: one register of PVC and Xe2


class IsaError(RuntimeError):
    """The back end refused a module; the message is its log."""


@dataclass(frozen=True)
class Loop:
    """A loop without another inside. `weight_bytes`: of its streaming block loads, in one iteration."""

    instructions: int
    slots: int
    weight_bytes: int
    messages: dict[str, int]

    @property
    def slots_per_64_bytes(self) -> float:
        return 64 * self.slots / self.weight_bytes if self.weight_bytes else 0.0


@dataclass(frozen=True)
class Kernel:
    name: str
    grf: int
    spill_bytes: int
    scratch_bytes: int
    slm_bytes: int
    barriers: int
    stack_calls: bool
    instructions: int
    slots: int
    loops: tuple[Loop, ...]
    messages: dict[str, int]
    dpas: int = 0  # matrix instructions

    @property
    def weight_loop(self) -> Loop | None:
        """The innermost loop that streams weights."""
        return max((loop for loop in self.loops if loop.weight_bytes), key=lambda loop: loop.weight_bytes, default=None)


@dataclass(frozen=True)
class Report:
    device: str
    rewritten: bool
    kernels: dict[str, Kernel] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


# ---- issue slots ----

_TYPE_BYTES = {"ub": 1, "b": 1, "uw": 2, "w": 2, "hf": 2, "bf": 2, "ud": 4, "d": 4, "f": 4, "uq": 8, "q": 8, "df": 8}
_OPERAND_TYPE = re.compile(r":(ub|b|uw|w|hf|bf|ud|d|f|uq|q|df)\b")
_EXECUTION_SIZE = re.compile(r"\((\d+)\|M\d+\)")
FORMULA = "slots = sum over instructions of ceil(execution size * widest operand in bytes / 64); a message counts 1"


def slots(instruction: str) -> int:
    """Issue slots of one line of iga64's text."""
    code = instruction.split("//")[0]
    size = _EXECUTION_SIZE.search(code)
    widest = max((_TYPE_BYTES[t] for t in _OPERAND_TYPE.findall(code)), default=0)
    if size is None or widest == 0 or opcode(instruction).startswith("send"):
        return 1
    return max(1, -(-int(size[1]) * widest // ISSUE_WIDTH))


def opcode(instruction: str) -> str:
    return re.sub(r"^\([^)]*\)\s*", "", instruction).split()[0].split(".")[0]


def message(instruction: str) -> str | None:
    """What a send does, from iga64's comment: "load.ugm.d32x32t.a64.st.ca"."""
    found = re.search(r"//\s*wr:[^;]*;\s*(.*?)\s*$", instruction)
    return found[1] if found else None


def streamed_bytes(name: str) -> int:
    """Bytes of a streaming (L1 hint "st") block load: only weights are loaded so."""
    found = re.match(r"load\.ugm\.d(\d+)x(\d+)t\.a64\.st\b", name)
    return int(found[1]) // 8 * int(found[2]) if found else 0


# ---- loops ----

_BRANCH = re.compile(r"\b(?:jmpi|while|goto|brc|brd|break|cont)\b.*?\b(L\d+)")


def _instructions(assembly: str) -> tuple[list[str], dict[str, int]]:
    lines: list[str] = []
    labels: dict[str, int] = {}
    for line in assembly.split("\n"):
        if found := re.match(r"\s*(L\d+):", line):
            labels[found[1]] = len(lines)
        elif (text := line.strip()) and not text.startswith(("//", "illegal")):
            lines.append(text)
    return lines, labels


def _spans(lines: list[str], labels: dict[str, int]) -> list[tuple[int, int]]:
    """(first, last) of every loop: from a label to the last branch back to it."""
    ends: dict[int, int] = {}
    for number, line in enumerate(lines):
        found = _BRANCH.search(line)
        target = labels.get(found[1], number + 1) if found else number + 1
        if target <= number:
            ends[target] = max(number, ends.get(target, 0))
    return sorted(ends.items())


def _histogram(lines: list[str]) -> dict[str, int]:
    return dict(Counter(name for line in lines if (name := message(line))).most_common())


def loops(assembly: str) -> tuple[Loop, ...]:
    """The innermost loops of a kernel's text."""
    lines, labels = _instructions(assembly)
    spans = _spans(lines, labels)
    found = []
    for first, last in spans:
        if any((a, b) != (first, last) and first <= a and b <= last for a, b in spans):
            continue
        body = lines[first : last + 1]
        weights = sum(streamed_bytes(name) for line in body if (name := message(line)))
        found.append(Loop(len(body), sum(map(slots, body)), weights, _histogram(body)))
    return tuple(found)


# ---- the back end ----


def _ocloc(spirv: bytes, device: str, options: str, folder: Path) -> tuple[bytes | None, str]:
    (folder / "in.spv").write_bytes(spirv)
    outputs = [folder / name for name in ("out", "out.bin")]  # releases since 2024 append a suffix all the same
    for output in outputs:
        output.unlink(missing_ok=True)
    command = [
        programs.back_end(device)["ocloc"].path, "compile", "-spirv_input", "-file", "in.spv", "-device", device,
        "-options", options, "-internal_options", "-cl-intel-allow-zebin",
        "-output", "out", "-output_no_suffix",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    made = next((output for output in outputs if output.exists()), None) if done.returncode == 0 else None
    return (made.read_bytes() if made else None), f"{done.stdout}{done.stderr}exit {done.returncode}"


def _sections(elf: bytes) -> dict[str, bytes]:
    (table,) = struct.unpack_from("<Q", elf, 40)
    size, count, names_index = struct.unpack_from("<HHH", elf, 58)
    rows = [struct.unpack_from("<IIQQQQIIQQ", elf, table + i * size) for i in range(count)]
    names = rows[names_index][4]
    return {elf[names + r[0] :].split(b"\0")[0].decode(): elf[r[4] : r[4] + r[5]] for r in rows}


def _ze_info(text: str) -> dict[str, dict[str, object]]:
    """kernel -> the scalars of its execution_env, and "scratch": bytes of its per-thread buffers. Not a YAML parser."""
    found: dict[str, dict[str, object]] = {}
    kernel: dict[str, object] = {}
    part = ""
    for line in text.split("\n"):
        if re.match(r"kernels_misc_info:|functions:", line):
            break
        if m := re.match(r"  - name: +(\S+)", line):
            kernel, part = found.setdefault(m[1], {"scratch": 0}), ""
        elif m := re.match(r"    (\w+): *$", line):
            part = m[1]
        elif m := re.match(r"      (?:- )?\s*(\w+): +(.*)", line):
            value: object = int(m[2]) if re.fullmatch(r"-?\d+", m[2]) else m[2]
            if part == "execution_env":
                kernel[m[1]] = value
            elif part == "per_thread_memory_buffers" and m[1] == "size":
                kernel["scratch"] = int(str(kernel["scratch"])) + int(str(value))
    return {name: env for name, env in found.items() if not name.startswith("Intel_Symbol_Table")}


def disassemble(code: bytes, device: str, folder: Path) -> str:
    (folder / "kernel.bin").write_bytes(code)
    command = [programs.back_end(device)["iga"].path, "-d", f"-p={PLATFORMS[device]}", "kernel.bin"]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, check=True).stdout


def report(
    spirv: bytes, device: str = "pvc", options: str = "", keep: Path | None = None, *, simt: bool = False
) -> Report:
    """Compile a module for `device` and read its kernels; `keep` is a folder for the assembly text.

    Raises IsaError. `options` go to the back end ("-doubleGRF": 256 registers). `simt`: a module of SIMT kernels (as
    Triton makes them), not of ESIMD ones.
    """
    if not simt:
        options = f"-vc-codegen {options}".strip()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        elf, log = _ocloc(spirv, device, options, folder)
        rewritten = not simt and (elf is None or b"has_stack_calls: true" in elf)
        if rewritten:
            other, changed = rewrite.for_old_igc(spirv)
            if changed:
                elf, log = _ocloc(other, device, options, folder)
            else:
                rewritten = False
        if elf is None:
            raise IsaError(f"ocloc refused the module for {device}: {log[-1500:]}{_hint(device)}")
        sections = _sections(elf)
        kernels = {}
        for kernel, env in _ze_info(sections[".ze_info"].decode()).items():
            assembly = disassemble(sections[f".text.{kernel}"], device, folder)
            if keep is not None:
                keep.mkdir(parents=True, exist_ok=True)
                (keep / f"{kernel}.{device}.asm").write_text(assembly, encoding="utf-8")
            kernels[kernel] = _kernel(kernel, env, assembly, log)
    warnings = tuple(line for line in log.split("\n") if re.search(r"warn|spill", line, re.IGNORECASE))
    return Report(device, rewritten, kernels, warnings)


def _hint(device: str) -> str:
    if device not in PLATFORMS or not programs.answer(programs.back_end(device)["ocloc"].path, device):
        return ""
    return "\nthis ocloc is older than the device: `python -m xpu_moe.esimd driver` fetches Intel's current one"


def _kernel(name: str, env: dict[str, object], assembly: str, log: str) -> Kernel:
    lines, _ = _instructions(assembly)
    spill = re.search(rf"Spill memory used = (\d+) bytes for kernel {re.escape(name)}\b", log)

    def number(key: str) -> int:
        return int(str(env.get(key, 0)))

    return Kernel(
        name=name,
        grf=number("grf_count"),
        spill_bytes=int(spill[1]) if spill else number("spill_size"),
        scratch_bytes=number("scratch"),
        slm_bytes=number("slm_size"),
        barriers=number("barrier_count"),
        stack_calls=env.get("has_stack_calls") == "true",
        instructions=len(lines),
        slots=sum(map(slots, lines)),
        loops=loops(assembly),
        messages=_histogram(lines),
        dpas=sum(opcode(line) == "dpas" for line in lines),
    )
