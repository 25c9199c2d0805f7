"""Cases for the stand-alone host program (sanitizers, planted bugs): what emulate.py does, in a process of its own."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from xpu_moe.esimd.kernels import abi
from xpu_moe.esimd.kernels.launch import Launch


@dataclass(frozen=True)
class Counts:
    """Loads and stores of a watched buffer: all of them, and the fewest and most of one byte."""

    loaded: int
    load_min: int
    load_max: int
    stored: int
    store_min: int
    store_max: int
    plain: int


class Script:
    """Buffers and launches, written as files into a folder and run by a program of host/build.py."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lines: list[str] = []
        self._shapes: dict[str, tuple[tuple[int, ...], np.dtype]] = {}

    def buffer(self, name: str, array: np.ndarray, *, watch: bool = False, poison: bool = False) -> None:
        """A buffer with the array's bytes, or of its size and full of poison."""
        file = "-"
        if not poison:
            file = str(self.folder / f"{name}.bin")
            np.ascontiguousarray(array).tofile(file)
        self._shapes[name] = (array.shape, array.dtype)
        self._lines.append(f"buffer {name} {array.nbytes} {file}")
        if watch:
            self._lines.append(f"watch {name}")

    def launch(self, launch: Launch, family: str, values: dict[str, object], seed: int = 0) -> None:
        """`values`: argument -> buffer name, None, or a number."""
        words = []
        for argument in abi.SIGNATURES[family]:
            value = values[argument.name]
            if argument.kind in ("int", "float"):
                words.append(f"{argument.kind[0]}:{value}")
            else:
                words.append("n" if value is None else f"b:{value}")
        shape = " ".join(map(str, (*launch.groups, *launch.local)))
        self._lines.append(f"launch {launch.kernel} {shape} {seed} {' '.join(words)}")

    def run(self, program: Path, *outputs: str) -> tuple[dict[str, np.ndarray], dict[str, Counts]]:
        """(output buffers, counts of the watched ones). Raises CalledProcessError with the program's stderr."""
        saves = [f"save {name} {self.folder / (name + '.out')}" for name in outputs]
        file = self.folder / "script.txt"
        file.write_text("\n".join([*self._lines, *saves]) + "\n", encoding="utf-8")
        done = subprocess.run([str(program), str(file)], capture_output=True, text=True)
        if done.returncode:
            raise subprocess.CalledProcessError(done.returncode, str(program), done.stdout, done.stderr)
        counts = {}
        for line in done.stdout.splitlines():
            name, *numbers = line.split()
            counts[name] = Counts(*map(int, numbers))
        arrays = {}
        for name in outputs:
            shape, dtype = self._shapes[name]
            arrays[name] = np.fromfile(self.folder / f"{name}.out", dtype).reshape(shape)
        return arrays, counts
