"""This process's report: one log line for each kind of layer, and the JSON file that a launcher reads."""

from __future__ import annotations

import logging
import os

from xpu_moe.env import read
from xpu_moe.serving import compat
from xpu_moe.serving.options import Options
from xpu_moe.serving.report import Layer, Worker
from xpu_moe.version import __version__

# below vLLM's logger, so that the lines get its format, its level and its prefix per worker
log = logging.getLogger("vllm.xpu_moe")
_worker = Worker()


def layer(found: Layer) -> None:
    """Count a prepared layer in; the first of its kind is logged."""
    if _worker.add(found):
        log.info("xpu_moe: %s", found.line())
    _write()


def note(text: str) -> None:
    """One sentence about the process (the plugin stepped back, a hook was set); each is told once."""
    if text not in _worker.notes:
        _worker.notes.append(text)
        log.info("xpu_moe: %s", text)
        _write()


def hook(name: str, text: str) -> None:
    """A hook was installed."""
    if name not in _worker.hooks:
        _worker.hooks.append(name)
    note(f"hook {name}: {text}")


def options(chosen: Options) -> None:
    _worker.fingerprint = chosen.fingerprint()


def _write() -> None:
    folder = read.text("XPU_MOE_REPORT")
    if not folder:
        return
    _worker.pid, _worker.xpu_moe = os.getpid(), __version__
    try:
        _worker.vllm, _worker.device = compat.version(), compat.device_kind()
        _worker.rank, _worker.world_size = compat.rank_and_world()
    except Exception as error:  # a vLLM that we do not know may lack any of these names; the note is what matters
        log.debug("xpu_moe: %s: %s", type(error).__name__, error)
    try:
        _worker.write(folder)
    except OSError as error:
        log.warning("xpu_moe: XPU_MOE_REPORT=%s: %s; the report is in this log only", folder, error.strerror)
