"""All profiles on all devices under two version sets: complete, free of conflicts, and the user's values survive."""

from __future__ import annotations

import pytest

from xpu_moe.env.judge import judge
from xpu_moe.env.profiles import PROFILES, BadProfile, Situation, exports, left_alone, render, resolve

OLD = {"vllm": "0.30.0", "torch": "2.11.0+xpu", "oneccl": "2021.15.9", "oneapi": "2025.3.2", "nccl": "2.28.3"}
NEW = {"vllm": "0.32.0", "torch": "2.14.0", "oneccl": "2022.1.2", "oneapi": "2026.1.1", "nccl": "2.29.7"}
FOUR = Situation(cards=(0, 1, 2, 3), peer_access=True)
EVERY = [
    (profile, device, versions)
    for profile in (*PROFILES, "no-p2p+graph", "no-p2p+stable")
    for device in ("xpu", "cuda", "cpu")
    for versions in (OLD, NEW)
    if all(device in PROFILES[part].devices for part in profile.split("+"))
]

DEFAULT = {
    "CCL_ATL_TRANSPORT": "ofi", "FI_PROVIDER": "tcp", "FI_TCP_IFACE": "lo", "CCL_KVS_IFACE": "lo",
    "CCL_TOPO_P2P_ACCESS": "1", "ZE_AFFINITY_MASK": "0,1,2,3", "ONEAPI_DEVICE_SELECTOR": "level_zero:0,1,2,3",
    "ZES_ENABLE_SYSMAN": "1", "SYCL_CACHE_PERSISTENT": "1", "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    "ZE_ENABLE_PCI_ID_DEVICE_ORDER": "1",
}  # fmt: skip
TRIO = {
    f"CCL_SYCL_{name}_SIMPLE_THRESHOLD": "4294967296" for name in ("ALLREDUCE", "ALLGATHERV", "REDUCE_SCATTER")
}  # fmt: skip


def values(profile: str, device: str, versions: dict[str, str], situation: Situation = FOUR) -> dict[str, str]:
    return exports(render(profile, device, versions, {}, situation))


@pytest.mark.parametrize("profile,device,versions", EVERY)
def test_a_profile_has_no_conflict_with_itself(profile, device, versions):
    settings = render(profile, device, versions, {}, FOUR)
    names = [setting.name for setting in settings]
    assert len(names) == len(set(names)) and names
    assert all(s.why and s.source and s.origin == "profile" and s.value == s.wanted for s in settings)
    assert all("{" not in s.value for s in settings)
    environ = exports(settings)
    peers_off = Situation(cards=(0, 1, 2, 3), peer_access=False) if "no-p2p" in profile else FOUR
    assert judge(environ, device, versions, peers_off, profile) == ()


def test_default_is_exactly_this():
    assert values("default", "xpu", NEW) == DEFAULT
    never = ("CCL_ZE_IPC_EXCHANGE", "CCL_WORKER_COUNT", "CCL_ALLREDUCE", "CCL_TOPO_FABRIC_VERTEX_CONNECTION_CHECK",
             "CCL_ZE_CACHE", "CCL_ENABLE_SYCL_KERNELS")  # fmt: skip
    for profile in ("default", "no-p2p", "stable", "graph"):
        assert not set(never) & set(values(profile, "xpu", NEW))


def test_no_p2p_adds_the_simple_kernels():
    wanted = {**DEFAULT, **TRIO, "CCL_TOPO_P2P_ACCESS": "0", "CCL_SYCL_ALLTOALL_TMP_BUF": "1"}
    assert values("no-p2p", "xpu", NEW) == wanted


def test_stable_takes_the_old_adapter():
    added = {
        "CCL_ZE_CACHE_OPEN_IPC_HANDLES": "0", "SYCL_UR_USE_LEVEL_ZERO_V2": "0", "NEOReadDebugKeys": "1",
        "RenderCompressedBuffersEnabled": "0", "EnableHostUsmAllocationPool": "0",
    }  # fmt: skip
    assert values("stable", "xpu", OLD) == {**DEFAULT, **added}


def test_graph_sets_the_variable_only_where_it_is_read():
    assert values("graph", "xpu", OLD)["VLLM_XPU_ENABLE_XPU_GRAPH"] == "1"
    assert "VLLM_XPU_ENABLE_XPU_GRAPH" not in values("graph", "xpu", NEW)
    left = {item.name: item.why for item in left_alone("graph", "xpu", NEW, FOUR)}
    assert "cudagraph_mode" in left["VLLM_XPU_ENABLE_XPU_GRAPH"]
    assert values("graph", "xpu", NEW)["CCL_SYCL_FORCE_RECORDING_PATH"] == "1"


def test_probe_forces_pidfd_and_stands_alone():
    probe = values("probe", "xpu", NEW)
    assert probe["CCL_ZE_IPC_EXCHANGE"] == "pidfd" and probe["CCL_KVS_CONNECTION_TIMEOUT"] == "30"
    assert probe["CCL_LOG_LEVEL"] == "info" and "ZE_AFFINITY_MASK" not in probe
    with pytest.raises(BadProfile, match="stands alone"):
        resolve("probe+stable", "xpu")


def test_cuda_profiles():
    assert values("default", "cuda", NEW)["CUDA_VISIBLE_DEVICES"] == "0,1,2,3"
    off = values("no-multicast", "cuda", NEW)
    assert off["NCCL_NVLS_ENABLE"] == "0" and off["TORCH_SYMM_MEM_DISABLE_MULTICAST"] == "1"
    assert "NCCL_P2P_DISABLE" not in off and values("no-p2p", "cuda", NEW)["NCCL_P2P_DISABLE"] == "1"
    with pytest.raises(BadProfile, match="for cuda, not for xpu"):
        resolve("no-multicast", "xpu")


def test_peer_access_is_set_by_a_verdict_only():
    for verdict in (None, False):
        assert "CCL_TOPO_P2P_ACCESS" not in values("default", "xpu", NEW, Situation(peer_access=verdict))
    why = {item.name: item.why for item in left_alone("default", "xpu", NEW)}["CCL_TOPO_P2P_ACCESS"]
    assert "xpu_moe.probe p2p" in why


def test_ring_for_one_card_with_two_versions_only():
    b60 = Situation(card_names=("Intel(R) Arc(TM) Pro B60 Graphics",))
    assert values("default", "xpu", {"oneccl": "2022.1.1"}, b60)["CCL_ALLREDUCE"] == "ring"
    assert "CCL_ALLREDUCE" not in values("default", "xpu", {"oneccl": "2021.17.2"}, b60)
    assert "CCL_ALLREDUCE" not in values("default", "xpu", {"oneccl": "2022.1.1"}, FOUR)


def test_a_library_without_the_names_gets_the_first_variable_only(tmp_path):
    plain = tmp_path / "libccl.so.1.0"
    names = ("CCL_TOPO_P2P_ACCESS", "CCL_ATL_TRANSPORT", "CCL_KVS_IFACE", "CCL_WORKER_COUNT")
    plain.write_bytes(b"\0" + b"".join(name.encode() + b"\0" for name in names))
    got = values("no-p2p", "xpu", OLD, Situation(library=plain))
    assert got["CCL_TOPO_P2P_ACCESS"] == "0"
    assert not set(TRIO) & set(got) and "CCL_SYCL_ALLTOALL_TMP_BUF" not in got


def test_several_hosts_need_an_interface_by_name():
    assert "CCL_KVS_IFACE" not in values("default", "xpu", NEW, Situation(hosts=2))
    assert values("default", "xpu", NEW, Situation(hosts=2, nic="eth1"))["CCL_KVS_IFACE"] == "eth1"


def test_cards_renumber_behind_the_mask():
    got = values("default", "xpu", NEW, Situation(cards=(2, 5, 7)))
    assert got["ZE_AFFINITY_MASK"] == "2,5,7" and got["ONEAPI_DEVICE_SELECTOR"] == "level_zero:0,1,2"


@pytest.mark.parametrize("profile,device,versions", EVERY)
def test_a_value_of_yours_is_never_replaced(profile, device, versions):
    yours = {setting.name: "mine" for setting in render(profile, device, versions, {}, FOUR)}
    kept = render(profile, device, versions, yours, FOUR)
    assert {s.name: s.value for s in kept if s.origin == "yours"} == yours
    assert exports(kept) == {}


def test_excluding_profiles_are_an_error():
    with pytest.raises(BadProfile, match="exclude each other: stable takes the old Level Zero adapter"):
        resolve("graph+stable", "xpu")
    with pytest.raises(BadProfile, match="got 'fast', wanted one of default"):
        resolve("fast", "xpu")
    with pytest.raises(BadProfile, match="device: got 'tpu'"):
        resolve("default", "tpu")


def test_an_unknown_launch_profile_offers_what_a_server_can_take():
    from xpu_moe.launch import named
    from xpu_moe.launch.errors import LaunchError

    listed = [row["name"] for row in named.table()["environments"]]
    assert "probe" not in listed and "no-p2p" in listed and "\n  probe" not in named.listing()
    for name, says in (("nope", "no 'nope'"), ("graph+nope", "no 'nope'"), ("", "no ''"),
                       ("probe", "'probe' is for `python -m xpu_moe.probe`, not for a server")):  # fmt: skip
        with pytest.raises(LaunchError) as refused:
            named.find(name, "xpu")
        text = str(refused.value)
        assert text.startswith(f"--profile {name}: {says}; the launches are b70-tp4-latency, ")
        assert text.endswith("default, no-p2p, stable, graph, no-multicast"), "the offer is made once, of what works"
