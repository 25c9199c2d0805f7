"""The p2p probe's verdict, under the probe's name; it lives in `xpu_moe.verdict`, below every room that reads it."""

from __future__ import annotations

from xpu_moe.verdict import Ground, Pair, Verdict, ground, load, peer_access, save

__all__ = ["Ground", "Pair", "Verdict", "ground", "load", "peer_access", "save"]
