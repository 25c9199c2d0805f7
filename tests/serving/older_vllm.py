"""The Python files of another vLLM release, kept in the cache. No compiled part: no build of it runs here anyway."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from xpu_moe import cache


def tree(version: str) -> Path:
    """A folder for PYTHONPATH that holds `vllm` of this release (300 MB are loaded once, 40 MB are kept).

    Its metadata says `+cpu`, by which vLLM takes its CPU platform.
    """
    root = cache.folder("envs") / f"vllm-python-{version}"
    ready = root / ".ready"
    with root.with_suffix(".lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        if not ready.exists():
            shutil.rmtree(root, ignore_errors=True)
            wheels = root / "wheels"
            command = [
                sys.executable,
                "-m",
                "pip",
                "download",
                "-q",
                "--no-deps",
                "-d",
                str(wheels),
                f"vllm=={version}",
            ]
            subprocess.run(command, check=True, timeout=900)
            with zipfile.ZipFile(next(wheels.glob("*.whl"))) as wheel:
                members = [name for name in wheel.namelist() if name.startswith("vllm/") and name.endswith(".py")]
                wheel.extractall(root, members)
            shutil.rmtree(wheels)
            info = root / f"vllm-{version}+cpu.dist-info"
            info.mkdir()
            (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n")
            ready.touch()
    return root
