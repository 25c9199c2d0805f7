"""A check-only rewrite of SPIR-V: what IGC 1.0.12504 (Debian 12) cannot digest of today's ESIMD front end.

1. `llvm.genx.lsc.load.merge.*` with an undefined pass-through (every hinted load) is mis-lowered: the call becomes the
   form without pass-through, the same message.
2. OpenCL `native_*` math becomes calls of functions that exist nowhere (64 kB of stack, false spills): the call becomes
   the one-instruction `llvm.genx.*` intrinsic.

The result is for reports alone. What ships is the original: current drivers take it.
"""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass

from xpu_moe.esimd.tools import programs

_MERGE = "llvm.genx.lsc.load.merge."
_MATH = {
    "native_recip": "inv",
    "native_exp2": "exp",
    "native_log2": "log",
    "native_sqrt": "sqrt",
    "native_rsqrt": "rsqrt",
}


@dataclass
class Text:
    """A disassembled module, and fresh ids for it."""

    lines: list[str]
    bound: int = 0
    changed: int = 0

    @classmethod
    def of(cls, spirv: bytes) -> Text:
        command = [programs.find("spirv-dis").path, "--raw-id", "--no-color", "-"]
        text = subprocess.run(command, input=spirv, capture_output=True, check=True).stdout.decode()
        found = re.search(r"Bound: (\d+)", text)
        assert found is not None, "spirv-dis printed no bound"
        return cls(text.split("\n"), int(found[1]))

    def assemble(self) -> bytes:
        command = [programs.find("spirv-as").path, "--target-env", "spv1.4", "--preserve-numeric-ids", "-", "-o", "-"]
        return subprocess.run(command, input="\n".join(self.lines).encode(), capture_output=True, check=True).stdout

    def fresh(self) -> str:
        self.bound += 1
        return f"%{self.bound - 1}"

    def find(self, pattern: str) -> dict[str, re.Match[str]]:
        """First group -> match, over all lines."""
        compiled = re.compile(pattern)
        return {m[1]: m for line in self.lines if (m := compiled.match(line))}


def for_old_igc(spirv: bytes) -> tuple[bytes, int]:
    """(the rewritten module, number of declarations that changed)."""
    text = Text.of(spirv)
    _drop_pass_through(text)
    _math_intrinsics(text)
    return (text.assemble(), text.changed) if text.changed else (spirv, 0)


def _drop_pass_through(text: Text) -> None:
    undefined = text.find(r"\s*(%\d+) = OpUndef ")
    names = text.find(rf'\s*OpDecorate (%\d+) LinkageAttributes "{re.escape(_MERGE)}[^"]*" Import')
    call = re.compile(r"\s*%\d+ = OpFunctionCall %\d+ (%\d+) .*?(%\d+)\s*$")
    last: dict[str, list[str]] = {}
    for line in text.lines:
        if (m := call.match(line)) and m[1] in names:
            last.setdefault(m[1], []).append(m[2])
    todo = {f for f, arguments in last.items() if all(a in undefined for a in arguments)}
    if not todo:
        return
    types = {f: m[2] for f, m in text.find(r"\s*(%\d+) = OpFunction %\d+ \S+ (%\d+)").items() if f in todo}
    shapes = {t: m[2] for t, m in text.find(r"\s*(%\d+) = (OpTypeFunction .*)").items()}
    shorter = {t: text.fresh() for t in dict.fromkeys(types.values())}

    out: list[str] = []
    dropped: set[str] = set()
    function, left = None, 0
    for line in text.lines:
        if (m := re.match(r"\s*(%\d+) = OpTypeFunction ", line)) and m[1] in shorter:
            out += [line, f"{shorter[m[1]]} = {shapes[m[1]].rsplit(' ', 1)[0]}"]
            continue
        if m := re.match(r"\s*(%\d+) = OpFunction ", line):
            function = m[1] if m[1] in todo else None
            if function:
                left = len(shapes[types[function]].split()) - 2
                line = line.replace(types[function], shorter[types[function]])
        if function and "OpFunctionParameter" in line:
            left -= 1
            if left == 0:
                dropped.add(line.split("=")[0].strip())
                continue
        if (m := call.match(line)) and m[1] in todo:
            line = line.rstrip().rsplit(" ", 1)[0]
        if (m := re.match(r"\s*OpDecorate (%\d+) LinkageAttributes", line)) and m[1] in todo:
            line = line.replace(".merge.", ".")
        out.append(line)
    named = re.compile(r"\s*Op(?:Decorate|Name) (%\d+)")
    text.lines = [line for line in out if not ((m := named.match(line)) and m[1] in dropped)]
    text.changed += len(todo)


def _math_intrinsics(text: Text) -> None:
    widths = {i: f"f{m[2]}" for i, m in text.find(r"\s*(%\d+) = OpTypeFloat (\d+)").items()}
    vectors = text.find(r"\s*(%\d+) = OpTypeVector (%\d+) (\d+)")
    widths |= {i: f"v{m[3]}{widths[m[2]]}" for i, m in vectors.items() if m[2] in widths}
    functions: dict[tuple[str, str], str] = {}
    for number, line in enumerate(text.lines):
        m = re.match(r"(\s*%\d+ = )OpExtInst (%\d+) %\d+ (native_\w+) (.*)", line)
        if m and m[3] in _MATH:
            function = functions.setdefault((m[3], m[2]), text.fresh())
            text.lines[number] = f"{m[1]}OpFunctionCall {m[2]} {function} {m[4]}"
    if not functions:
        return
    known = {m[2].strip(): i for i, m in text.find(r"\s*(%\d+) = (OpTypeFunction .*)").items()}
    decorations, types, declarations = [], [], []
    for (name, kind), function in functions.items():
        intrinsic = f"llvm.genx.{_MATH[name]}.{widths[kind]}"
        decorations += [
            f'OpDecorate {function} LinkageAttributes "{intrinsic}" Import',
            f"OpDecorate {function} VectorComputeFunctionINTEL",
        ]
        shape = f"OpTypeFunction {kind} {kind}"
        if shape not in known:
            known[shape] = text.fresh()
            types.append(f"{known[shape]} = {shape}")
        declarations += [
            f"{function} = OpFunction {kind} None {known[shape]}",
            f"{text.fresh()} = OpFunctionParameter {kind}",
            "OpFunctionEnd",
        ]
    first_decoration = next(i for i, line in enumerate(text.lines) if "OpDecorate" in line)
    first_function = next(i for i, line in enumerate(text.lines) if re.match(r"\s*%\d+ = OpFunction ", line))
    before, between, after = (
        text.lines[:first_decoration],
        text.lines[first_decoration:first_function],
        text.lines[first_function:],
    )
    text.lines = before + decorations + between + types + declarations + after
    text.changed += len(functions)
