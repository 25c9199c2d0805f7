"""Named launches, the graph policy's flags, and KV bytes filled in: where each value comes from."""

from __future__ import annotations

import json

import pytest

from tests.launch.test_checks import MINIMAX, folder, plan_of, refused
from xpu_moe.launch import build, detect, graphs, model, named
from xpu_moe.launch.args import parse
from xpu_moe.plan.graph_policy import Decision
from xpu_moe.plan.profiles import PROFILES


@pytest.fixture
def minimax(tmp_path):
    return model.check(str(folder(tmp_path / "MiniMax", MINIMAX)))


def test_the_best_row_of_the_ladder_is_what_the_latency_profile_gives(minimax):
    plan = plan_of(minimax, "--profile", "b70-tp4-latency", kind="xpu")
    wanted = {"tp": 4, "pp": 1, "max_model_len": 2048, "block_size": 64, "kv_cache_memory_bytes": 256 << 20,
              "dtype": "float16", "max_num_seqs": 1}  # fmt: skip
    assert {name: plan.value(name) for name in wanted} == wanted
    assert plan.settings["block_size"].origin == "profile b70-tp4-latency"
    assert plan.facts()["graph"] is False


def test_a_flag_and_a_variable_win_over_the_profile(minimax):
    plan = plan_of(minimax, "--profile", "b70-tp4-latency", "--block-size", "128", kind="xpu", environ={"TP": "2"})
    assert plan.value("block_size") == 128 and plan.value("tp") == 2
    assert plan.settings["tp"].origin == "environment TP"


def test_the_public_graph_line_stays_without_graphs_until_proved(minimax):
    plan = plan_of(minimax, "--profile", "b70-tp4-graph", kind="xpu")
    command = " ".join(plan.command)
    assert '{"cudagraph_mode": "NONE"}' in command and "--no-async-scheduling" in command
    assert any(note.startswith("graphs are off: ") for note in plan.notes)
    assert not any(row.origin == "profile graph" for row in plan.environment)


def test_without_a_profile_graphs_are_decided_as_explicitly(minimax):
    plan = plan_of(minimax, "--tp", "4", kind="xpu")
    assert '{"cudagraph_mode": "NONE"}' in plan.command


def test_the_users_own_compilation_config_is_left_alone(minimax):
    plan = plan_of(minimax, "--", "--compilation-config", '{"mode": 0}', kind="xpu")
    assert plan.command.count("--compilation-config") == 1 and '{"mode": 0}' in plan.command
    assert any("your own flags" in note for note in plan.notes)


def test_a_decision_for_graphs_becomes_flags_variables_and_hooks(minimax, monkeypatch):
    found = Decision(
        "PIECEWISE", "the probe passed", (1, 2, 4), (), {"A": "1", "B": None}, ("skip_graph_memory_estimate",)
    )
    monkeypatch.setattr(graphs, "decision", lambda *_: found)
    plan = plan_of(minimax, "--profile", "b70-tp4-graph", kind="xpu", environ={"B": "set"})
    config = json.loads(plan.command[plan.command.index("--compilation-config") + 1])
    assert config["cudagraph_mode"] == "PIECEWISE" and config["cudagraph_capture_sizes"] == [1, 2, 4]
    assert config["compile_sizes"] == [1]
    rows = {row.name: row.value for row in plan.environment}
    assert rows["A"] == "1" and rows["B"] is None and "B" not in plan.child_environment({"B": "set"})
    additional = json.loads(plan.command[plan.command.index("--additional-config") + 1])
    assert "skip_graph_memory_estimate" in additional["xpu_moe"]["hooks"]
    assert plan.facts()["graph"] is True


def test_kv_bytes_are_planned_on_a_known_card(minimax):
    arguments = parse(["--model", str(minimax.path), "--tp", "4", "--dtype", "float16"])
    device = detect.Found("xpu", 4, "4 x B70", (), ("0xe223",) * 4)
    plan = build.build(arguments, minimax, device, {}, vllm="vllm", run_folder=minimax.path, make_folders=False)
    setting = plan.settings["kv_cache_memory_bytes"]
    assert setting.origin == "plan for a b70" and 128 << 20 < setting.value < 2 << 30
    assert setting.value % (63488 * 64) == 0  # whole blocks of 64 tokens, 63,488 B each at TP4
    assert plan.settings["max_model_len"].value == setting.value // 63488


def test_a_launch_joined_with_an_environment(minimax):
    plan = plan_of(minimax, "--profile", "b70-tp4-latency+no-p2p", kind="xpu")
    environ = {row.name: row.value for row in plan.environment}
    assert plan.value("tp") == 4 and plan.value("max_model_len") == 2048 and environ["CCL_TOPO_P2P_ACCESS"] == "0"
    assert plan.profile == "b70-tp4-latency+no-p2p"
    graph = named.find("no-p2p+b70-tp4-graph", "xpu")
    assert graph.env == "no-p2p+graph" and graph.flags == named.find("b70-tp4-graph", "xpu").flags
    assert "no-p2p" in {row.origin.removeprefix("profile ") for row in plan.environment}
    assert "exclude" in refused(named.find, "b70-tp4-graph+stable", "xpu")
    assert "two launches" in refused(named.find, "b70-tp4-latency+b70-tp4-long", "xpu")
    assert "nonsense" in refused(named.find, "b70-tp4-latency+nonsense", "xpu")


def test_the_mask_decides_which_card_is_planned_for(minimax):
    arguments = parse(["--model", str(minimax.path), "--tp", "4", "--dtype", "float16"])
    device = detect.Found("xpu", 5, "test", (), ("0xe20b", *("0xe223",) * 4))  # a B580 in the first slot
    for mask, origin in (("1,2,3,4", "plan for a b70"), ("", "default"), ("7", "default"), ("gpu", "default")):
        environ = {"ZE_AFFINITY_MASK": mask}
        plan = build.build(
            arguments, minimax, device, environ, vllm="vllm", run_folder=minimax.path, make_folders=False
        )
        assert plan.settings["kv_cache_memory_bytes"].origin == origin, mask


def test_wrong_profiles(minimax):
    assert "cpu (no accelerator" in refused(named.find, "b70-tp4-latency", "cpu", "no accelerator was found")
    assert "is for cuda" in refused(named.find, "h200-tp4-fp8", "xpu")
    assert "b70-tp4-latency" in refused(named.find, "nonsense", "xpu")
    assert "exclude" in refused(named.find, "stable+graph", "xpu")


@pytest.mark.parametrize("name", PROFILES)
def test_every_named_launch_can_be_built(minimax, name):
    plan = plan_of(minimax, "--profile", name, kind=PROFILES[name].device)
    assert plan.profile == name and plan.command[1] == "serve"
    assert name in named.listing()


def test_the_list_says_what_is_proved_and_what_graphs_wait_for():
    launches = {launch["name"]: launch for launch in named.table()["launches"]}
    assert [name for name, launch in launches.items() if launch["proved"]] == ["b70-tp4-latency"]
    assert all(launch["evidence"] in named.listing() for launch in launches.values())
    waiting = [name for name in PROFILES if "probe allreduce" in named.find(name, PROFILES[name].device).doc]
    assert waiting == ["b70-tp4-graph"]


@pytest.mark.parametrize("argv", [("--graph", "on"), ("--profile", "b70-tp4-graph")])
def test_an_on_that_is_overridden_is_told(minimax, argv):
    (said,) = (note for note in plan_of(minimax, "--tp", "4", *argv, kind="xpu").notes if "graphs" in note)
    what = "--graph on" if argv[0] == "--graph" else "the on of profile b70-tp4-graph"
    assert said.startswith("graphs are off: ") and said.endswith(f"; {what} does not change that")
    assert "1 more reasons" not in said


def test_graphs_on_a_cpu_are_told_of_only_where_asked_for(minimax):
    for argv in ((), ("--graph", "off")):
        assert not [note for note in plan_of(minimax, *argv).notes if "graph" in note]
    (said,) = (note for note in plan_of(minimax, "--graph", "on").notes if "graph" in note)
    assert "CPU has no graphs" in said and "--graph on does not change that" in said


def test_an_on_is_not_overridden_where_the_user_or_vllm_decides(minimax):
    for argv, kind in ((("--", "--compilation-config", "{}"), "xpu"), ((), "cuda")):
        assert not [n for n in plan_of(minimax, "--graph", "on", *argv, kind=kind).notes if "does not change" in n]


@pytest.mark.parametrize(("others", "word"), [(0, ""), (1, " (and 1 more reason)"), (2, " (and 2 more reasons)")])
def test_reasons_are_counted(minimax, others, word):
    found = Decision("NONE", "graphs are off: because", refused=("because",) * (others + 1))
    asked = plan_of(minimax).settings["graph"]
    assert graphs.note(found, detect.Found("xpu", 4, "test"), (), asked) == f"graphs are off: because{word}"
