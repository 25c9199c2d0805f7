"""Stand-in wheels and package indexes of a few bytes, to see what the installer chooses without downloading it."""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path


def wheel(folder: Path, name: str, version: str, needs: Iterable[str] = (), tag: str = "py3-none-any") -> Path:
    """A wheel with metadata and one module file."""
    stem = name.replace("-", "_")
    info = f"{stem}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    files = {
        f"standin_{stem}.py": f"VERSION = {version!r}\n",
        f"{info}/METADATA": metadata + "".join(f"Requires-Dist: {need}\n" for need in needs),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tag}\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{stem}-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in files.items():
            archive.writestr(file, text)
    return path


class Index:
    """A package index as a folder: `uri` for pip."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True)

    @property
    def uri(self) -> str:
        return self.root.as_uri()

    def add(self, name: str, version: str, *needs: str, tag: str = "py3-none-any") -> Index:
        folder = self.root / name
        wheel(folder, name, version, needs, tag)
        links = "".join(f'<a href="{file.name}">{file.name}</a>\n' for file in sorted(folder.glob("*.whl")))
        (folder / "index.html").write_text(f"<!DOCTYPE html><html><body>\n{links}</body></html>\n")
        return self


def tag_of(minor: int) -> str:
    """The tag of a wheel that only CPython 3.`minor` on any platform takes."""
    return f"cp3{minor}-none-any"


# A Python that is not this one.
OTHER = 12 if sys.version_info[1] != 12 else 13
