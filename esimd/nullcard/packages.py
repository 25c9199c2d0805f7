"""Intel's current GPU compiler and Level Zero driver, in a folder of their own.

Debian's stable releases have an old one (22.43: no Battlemage) or none; the unstable archive has the current one, with
a C library of its own that these programs are started with. Nothing is installed: packages are taken apart in the cache
folder. The archive moves on, so the folder is named by the version that was found in it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from xpu_moe import cache, streams

SUITE = "sid"
# ocloc, the Level Zero loader and Intel's driver behind it. The compiler library comes in as what the OpenCL driver
# depends on (its name has a number that changes), iga64 in the package of that name with -tools.
ROOTS = ("intel-ocloc", "libze1", "libze-intel-gpu1")
_COMPILER_OF = "intel-opencl-icd"
_COMPILER = re.compile(r"libigc\d+")
_FACTS = "packages.json"


class Unavailable(RuntimeError):
    """The packages cannot be had here; the message says why and what to do."""

    exit_code = 2


@dataclass(frozen=True)
class Driver:
    """A folder with the packages taken apart."""

    root: Path
    versions: dict[str, str]  # of every package

    @property
    def libraries(self) -> Path:
        return self.root / "usr" / "lib" / "x86_64-linux-gnu"

    @property
    def loader(self) -> Path:
        """The dynamic loader of the C library that the packages were built for."""
        return self.libraries / "ld-linux-x86-64.so.2"

    @property
    def version(self) -> str:
        return self.versions["intel-ocloc"]

    @property
    def compiler(self) -> str:
        """Name and version of the compiler library."""
        return next(f"{name} {version}" for name, version in self.versions.items() if _COMPILER.fullmatch(name))

    def started(self, program: Path, *arguments: str, also: Sequence[Path] = ()) -> list[str]:
        """A command that runs a program with these libraries; `also`: folders that are searched behind them."""
        path = ":".join(map(str, (self.libraries, *also)))
        return [str(self.loader), "--library-path", path, str(program), *arguments]

    def program(self, name: str) -> Path:
        """A script that starts a program of the packages: `ocloc`, `iga64`."""
        return self.root / "bin" / name


def found() -> Driver | None:
    """The newest driver in the cache folder, None where there is none."""
    facts = list(cache.location("intel-driver").glob(f"*/{_FACTS}"))
    if not facts:
        return None
    newest = max(facts, key=lambda file: file.stat().st_mtime)
    return Driver(newest.parent, json.loads(newest.read_text(encoding="utf-8")))


def fetch(*, again: bool = False) -> Driver:
    """The driver in the cache folder, else the archive's current one (34 MB; progress on stderr). `again`: ask the
    archive although one is there. Raises Unavailable."""
    with _locked(cache.folder("intel-driver") / ".lock"):
        if not again and (there := found()):
            return there
        return _fetched(cache.folder("intel-driver"))


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _fetched(folder: Path) -> Driver:
    for tool in ("apt-get", "apt-cache", "dpkg-deb"):
        if shutil.which(tool) is None:
            raise Unavailable(
                f"{tool}: not found. Intel's current compiler comes from Debian's archive here; elsewhere install it "
                "with the driver (package intel-ocloc of Intel's repository, or of Ubuntu 25.04 and newer)"
            )
    with tempfile.TemporaryDirectory(dir=folder, prefix=".") as name:
        work = Path(name)
        options = _archive(work)
        streams.warn(f"xpu_moe: reading the package list of Debian {SUITE}")
        _run(["apt-get", *options, "update", "-q"])
        compiler = _compiler(options)
        wanted = [*ROOTS, compiler, f"{compiler}-tools"]
        streams.warn(f"xpu_moe: fetching {', '.join(wanted)} and what they need (34 MB) into {folder}")
        _run(["apt-get", *options, "install", "-q", "-y", "--download-only", "--no-install-recommends", *wanted])
        root = work / "root"
        versions: dict[str, str] = {}
        for package in sorted((work / "archives").glob("*.deb")):
            _run(["dpkg-deb", "-x", str(package), str(root)])
            shown = _run(["dpkg-deb", "--show", "--showformat=${Package} ${Version}", str(package)])
            package_name, version = shown.split()
            versions[package_name] = version
        _programs(Driver(root, versions), folder / versions["intel-ocloc"])
        (root / _FACTS).write_text(json.dumps(versions, indent=1) + "\n", encoding="utf-8")
        target = folder / versions["intel-ocloc"]
        shutil.rmtree(target, ignore_errors=True)
        root.rename(target)
    return Driver(target, versions)


def _archive(work: Path) -> list[str]:
    """apt's options for the unstable archive alone, with lists and packages in `work`: nothing of the system's changes.

    The archive's address is the one that this machine's apt has for Debian's packages.
    """
    shown = _run(["apt-get", "indextargets", "--format", "$(ORIGIN) $(REPO_URI)", "Created-By: Packages"])
    addresses = [line.split()[1] for line in shown.splitlines() if line.startswith("Debian ")]
    address = next((a for a in addresses if a.rstrip("/").endswith("/debian")), None)
    if address is None:
        raise Unavailable(
            "apt has no Debian archive on this machine: Intel's current compiler comes with the driver (package "
            "intel-ocloc of Intel's repository, or of Ubuntu 25.04 and newer)"
        )
    keys = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
    signed = f"[arch=amd64 signed-by={keys}]" if keys.exists() else "[arch=amd64]"
    (work / "sources.list").write_text(f"deb {signed} {address} {SUITE} main\n")
    (work / "status").touch()  # as if nothing were installed: all that is needed comes along
    for part in ("lists", "archives"):
        (work / part / "partial").mkdir(parents=True)
    settings = {
        "Dir::Etc::SourceList": work / "sources.list", "Dir::Etc::SourceParts": "/dev/null",
        "Dir::State": work, "Dir::State::Lists": work / "lists", "Dir::State::status": work / "status",
        "Dir::Cache": work, "Dir::Cache::archives": work / "archives", "Dir::Log": work,
        "APT::Architecture": "amd64", "APT::Architectures": "amd64", "APT::Get::AllowUnauthenticated": "false",
        "APT::Sandbox::User": "root" if os.geteuid() == 0 else "", "Debug::NoLocking": "1",
    }  # fmt: skip
    return [part for name, value in settings.items() for part in ("-o", f"{name}={value}")]


def _compiler(options: Sequence[str]) -> str:
    shown = _run(["apt-cache", *options, "depends", _COMPILER_OF])
    names = _COMPILER.findall(shown)
    if not names:
        raise Unavailable(f"Debian {SUITE}: {_COMPILER_OF} names no compiler library (libigc and a number):\n{shown}")
    return names[0]


def _programs(driver: Driver, target: Path) -> None:
    """Scripts in bin/ that start the programs where they will lie."""
    there = Driver(target, driver.versions)
    for name in ("ocloc", "iga64"):
        files = sorted((driver.root / "usr" / "bin").glob(f"{name}*"))
        if not files:
            raise Unavailable(f"Debian {SUITE}: no {name} in {', '.join(driver.versions)}")
        command = there.started(there.root / "usr" / "bin" / files[0].name)
        script = driver.program(name)
        script.parent.mkdir(exist_ok=True)
        script.write_text("#!/bin/sh\nexec " + " ".join(f"'{part}'" for part in command) + ' "$@"\n')
        script.chmod(0o755)


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        tail = "\n".join((done.stderr.strip() or done.stdout.strip()).splitlines()[-6:])
        raise Unavailable(
            f"`{' '.join(part for part in command if '::' not in part and part != '-o')}` failed:\n{tail}"
        )
    return done.stdout
