"""comm.map_peers: which communicators have a device room, and that a refused set-up leaves the library in charge."""

from __future__ import annotations

import pytest

from xpu_moe import comm
from xpu_moe.comm import peers
from xpu_moe.comm.group import Communicator
from xpu_moe.cuda import collectives
from xpu_moe.cuda.collectives import arena as arenas
from xpu_moe.ops.contract import Case, select


def communicator(backend: str, world_size: int = 2) -> Communicator:
    return Communicator("peers-test", 0, world_size, backend)


@pytest.mark.parametrize("backend", ("gloo", "xccl", "none"))
def test_a_library_without_a_room_says_so(backend):
    assert comm.map_peers(communicator(backend)) == f"no peer-memory collectives for {backend}"
    comm.unmap_peers(communicator(backend))


def test_nccl_communicators_get_the_cuda_room():
    assert peers.room(communicator("nccl")) is collectives


def test_a_world_that_the_kernels_do_not_serve_is_refused_and_the_reason_reaches_the_selection(monkeypatch):
    from xpu_moe.cuda import compiler

    monkeypatch.setattr(compiler, "available", lambda: "nvrtc somewhere")
    monkeypatch.setattr(arenas, "_reasons", {})
    who = communicator("nccl", world_size=9)
    assert comm.map_peers(who) == "world size 9: wanted 2 to 8"
    chosen = select(Case("all_reduce", "cuda", "sm_90", bytes=8, world_size=2, group=who.name))
    assert chosen.name == "process_group" and dict(chosen.refused)["peer_one_shot"] == "world size 9: wanted 2 to 8"
    select.cache_clear()
