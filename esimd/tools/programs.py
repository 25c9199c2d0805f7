"""The programs that building and checking need, and what to type where one is missing."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from xpu_moe import toolenv

# The SPIR-V compiler (libsycl-jit) and Intel's headers, from PyPI. Pinned: its entry point is a private interface, and
# newer runtimes' output was not checked with the gates of this folder.
COMPILER = ("intel-sycl-rt==2026.1.2", "intel-cmplr-lib-rt==2026.1.2")


@dataclass(frozen=True)
class Program:
    """Names under which a program is looked for, the Debian package that has it, the versions it was checked with."""

    names: tuple[str, ...]
    package: str
    checked: str


PROGRAMS = {
    "clang": Program(("clang++-22",), "clang-22 libclang-rt-22-dev", "22.1.8"),
    "ocloc": Program(("ocloc",), "intel-opencl-icd", "22.43.24595.41"),
    "iga": Program(("iga64",), "libigc-tools", "1.0.12504"),
    "spirv-dis": Program(("spirv-dis",), "spirv-tools", "2023.1"),
    "spirv-as": Program(("spirv-as",), "spirv-tools", "2023.1"),
}


class MissingProgram(RuntimeError):
    """A program is not installed; the message is the line to type."""

    exit_code = 2


@dataclass(frozen=True)
class Found:
    path: str
    version: str
    as_checked: bool


@cache
def find(name: str) -> Found:
    """Path and version of a program. Raises MissingProgram with the apt line."""
    program = PROGRAMS[name]
    path = next((p for p in map(shutil.which, program.names) if p), None)
    if path is None:
        raise MissingProgram(
            f"{program.names[0]} is missing: apt-get install -y --no-install-recommends {program.package}"
        )
    text = _version(name, path, program)
    return Found(path, text, text.startswith(program.checked))


def _version(name: str, path: str, program: Program) -> str:
    if name in ("ocloc", "iga"):  # neither tells its version on every release: the package manager knows
        command = ["dpkg-query", "-W", "-f", "${Version}", program.package]
        done = subprocess.run(command, capture_output=True, text=True)
        return done.stdout.strip() if done.returncode == 0 else "unknown"
    done = subprocess.run([path, "--version"], capture_output=True, text=True)
    found = re.search(r"\d+\.\d+(\.\d+)?", done.stdout + done.stderr)
    return found[0] if found else "unknown"


@cache
def compiler_root() -> Path:
    """The environment of the SPIR-V compiler and Intel's headers; made on the first call."""
    return toolenv.ensure("spirv", COMPILER, no_deps=True)


def versions(*names: str) -> dict[str, str]:
    """name -> "version" or "version (checked with …)" for a report."""
    found = {}
    for name in names:
        program = find(name)
        found[name] = program.version + ("" if program.as_checked else f" (checked with {PROGRAMS[name].checked})")
    return found
