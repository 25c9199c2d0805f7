"""The programs that building and checking need, and what to type where one is missing."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from xpu_moe import toolenv
from xpu_moe.esimd.nullcard import packages

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


# The same two of the fetched driver (nullcard/packages.py).
FETCHED = {"ocloc": "26.27.39122", "iga": "2.40.14"}


class MissingProgram(RuntimeError):
    """A program is not installed; the message is the line to type."""

    exit_code = 2


@dataclass(frozen=True)
class Found:
    """A program: where, which version, and the version that the figures of this repository were made with."""

    path: str
    version: str
    checked: str

    @property
    def as_checked(self) -> bool:
        return self.version.startswith(self.checked)

    def __str__(self) -> str:
        return self.version + ("" if self.as_checked else f" (checked with {self.checked})")


@cache
def find(name: str) -> Found:
    """Path and version of a program. Raises MissingProgram with the apt line."""
    program = PROGRAMS[name]
    path = next((p for p in map(shutil.which, program.names) if p), None)
    if path is None:
        raise MissingProgram(
            f"{program.names[0]} is missing: apt-get install -y --no-install-recommends {program.package}"
        )
    return Found(path, _version(name, path, program), program.checked)


def _version(name: str, path: str, program: Program) -> str:
    if name in ("ocloc", "iga"):  # neither tells its version on every release: the package manager knows
        command = ["dpkg-query", "-W", "-f", "${Version}", program.package]
        done = subprocess.run(command, capture_output=True, text=True)
        return done.stdout.strip() if done.returncode == 0 else "unknown"
    done = subprocess.run([path, "--version"], capture_output=True, text=True)
    found = re.search(r"\d+\.\d+(\.\d+)?", done.stdout + done.stderr)
    return found[0] if found else "unknown"


# ---- the back end: ocloc and the disassembler of its release


def back_end(device: str) -> dict[str, Found]:
    """{"ocloc", "iga"} for a device: the system's where its ocloc knows the device, else the fetched ones where they
    do, or where the system has none; the system's where nobody knows it (its answer is then the reader's). Raises
    MissingProgram."""
    driver = packages.found()
    try:
        system = {name: find(name) for name in FETCHED}
    except MissingProgram:
        if driver is None:
            raise
        return _fetched(driver)
    if driver and answer(system["ocloc"].path, device) and not answer(str(driver.program("ocloc")), device):
        return _fetched(driver)
    return system


def _fetched(driver: packages.Driver) -> dict[str, Found]:
    versions = {"ocloc": driver.version, "iga": driver.compiler.split()[1]}
    paths = {"ocloc": driver.program("ocloc"), "iga": driver.program("iga64")}
    return {name: Found(str(paths[name]), versions[name], checked) for name, checked in FETCHED.items()}


@cache
def answer(ocloc: str, device: str) -> str:
    """ "" where an ocloc compiles for a device, else the first line that it says."""
    if device == "pvc":  # Debian's 22.43 compiles for it and has no number to tell
        return ""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([ocloc, "ids", device], capture_output=True, text=True, cwd=folder)
    if done.returncode == 0 and re.search(r"\d+\.\d+\.\d+", done.stdout):
        return ""
    lines = (done.stdout + done.stderr).strip().splitlines()
    return lines[0] if lines else f"exit {done.returncode}"


@cache
def compiler_root() -> Path:
    """The environment of the SPIR-V compiler and Intel's headers; made on the first call."""
    return toolenv.ensure("spirv", COMPILER, no_deps=True)
