"""The peer probe on rehearsed cards: what it finds, what it says, what it keeps."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import numpy
import pytest

from xpu_moe import cache, verdict
from xpu_moe.env.read import snapshot
from xpu_moe.probe import p2p
from xpu_moe.probe._p2p.fabric import Rehearsal, choose
from xpu_moe.probe._p2p.measure import measure, patterns

SIZE = 1 << 16


def pairs(fabric) -> dict[tuple[int, int], verdict.Pair]:
    return {(p.source, p.target): p for p in measure(fabric, SIZE, lambda _: None)}


def test_every_direction_is_measured_and_intact():
    found = pairs(Rehearsal(range(3)))
    assert len(found) == 6
    assert all(p.reachable and p.intact and p.gb_per_s > 0 and not p.says for p in found.values())


@pytest.mark.parametrize("kind", ["corrupt", "stale"])
def test_one_broken_direction_is_named_and_no_other(kind):
    found = pairs(Rehearsal(range(3), f"{kind}@2>0"))
    assert [pair for pair, p in found.items() if not p.intact] == [(2, 0)]
    assert "words differ, the first at" in found[2, 0].says


def test_data_mixed_up_only_when_all_copy_at_once_is_found():
    class Mixing(Rehearsal):
        """Two copies in flight swap their data."""

        def __init__(self, cards):
            super().__init__(cards)
            self.queue: list = []

        def copy(self, source, target):
            self.queue.append((source, target))

        def wait(self):
            sources = [source for source, _ in self.queue]
            for source, (_, target) in zip(sources[1:] + sources[:1], self.queue):
                target[1][:] = source[1]
            self.queue.clear()

    found = pairs(Mixing(range(2)))
    assert all(not p.intact and p.says.startswith("all directions at once") for p in found.values())


def test_patterns_show_stuck_bits_and_misplaced_words():
    made = dict(patterns(1000))
    assert {int(words[0]) for words in made.values()} >= {0, 0xFFFFFFFF, 0x55555555, 0xAAAAAAAA}
    assert len(numpy.unique(made["address"])) == 1000
    assert all(words.dtype == numpy.uint32 for words in made.values())


def run(*arguments: str, **environ: str) -> tuple[int, dict]:
    command = [sys.executable, "-m", "xpu_moe.probe", "p2p", "--json", "--bytes", str(SIZE), *arguments]
    done = subprocess.run(command, env={**snapshot(), **environ}, capture_output=True, text=True, timeout=60)
    return done.returncode, json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault,code,found",
    [
        ("", 0, "ok"),
        ("unreachable@0>1", 1, "unreachable"),
        ("hang@1>0", 3, "hang"),
        ("kill@1>0", 4, "dead"),
        ("corrupt@1>0", 5, "corrupt"),
    ],
)
def test_the_tool_ends_with_its_code(fault, code, found, tmp_path):
    arguments = ("--rehearse", "2", "--timeout", "2", "--inject", fault)
    got, report = run(*arguments, XPU_MOE_CACHE=str(tmp_path / "c"), TMPDIR=str(tmp_path))
    assert (got, report["verdict"], report["schema"]) == (code, found, 1)
    assert report["kept"] is None, "a rehearsal left a verdict"
    assert not list(tmp_path.glob("xpu_moe-probe-*"))
    if found == "hang":
        assert "1>0 data" in report["says"]


def test_no_accelerator_is_said(capsys, monkeypatch):
    monkeypatch.setattr(p2p, "devices", lambda stop: {"cpu": 1})
    assert p2p.main([]) == 2
    assert "no accelerator here" in capsys.readouterr().err
    assert p2p.main(["--json"]) == 2
    told = json.loads(capsys.readouterr().out)
    assert told["ok"] is False and told["cannot"].startswith("no accelerator here")
    for wrong in (
        ["--timeout", "nan"],
        ["--cards", "0,x"],
        ["--cards", "²"],
        ["--cards", ""],
        ["--cards", "0,1,0"],
        ["--inject", "corrupt@0>1"],
        ["--rehearse", "-1"],
    ):
        assert p2p.main(wrong) == 2
        assert capsys.readouterr().err.startswith(f"p2p: {wrong[0]}: ")
    assert p2p.main(["--bytes", "10"]) == 2
    assert "wanted a multiple of 4" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--inject", "zork@1>0"), "--inject: got 'zork@1>0', wanted KIND@S>T with a kind of corrupt, stale, unreach"),
        (("--inject", "corrupt@1>9"), "S and T two cards of 0, 1, 2, 3"),
        (("--inject", "corrupt@1>1"), "--inject: got 'corrupt@1>1', wanted KIND@S>T"),
        (("--inject", "corrupt@1"), "--inject: got 'corrupt@1', wanted KIND@S>T"),
        (("--inject", "corrupt@a>b"), "--inject: got 'corrupt@a>b', wanted KIND@S>T"),
        (("--inject", "corrupt@1>²"), "--inject: got 'corrupt@1>²', wanted KIND@S>T"),
        (("--cards", "0,1,2"), "--cards: got '0,1,2', which names cards of this machine"),
        (("--device", "cuda"), "--device: got 'cuda', which names cards of this machine"),
        (("--rehearse", "0"), "--rehearse: got 0, wanted a whole number from 2 to 16"),
        (("--rehearse", "1"), "--rehearse: got 1, wanted a whole number from 2 to 16"),
        (("--rehearse", "17"), "--rehearse: got 17, wanted a whole number from 2 to 16"),
        (("--rehearse", "16", "--bytes", str(1 << 32)), "--rehearse, --bytes: got 16 cards with copies of 4294967296"),
        (("--bytes", str(1 << 40)), "--bytes: got 1099511627776, wanted a multiple of 4 from 4096 to"),
    ],
)
def test_a_rehearsal_that_cannot_be_is_refused_before_it_starts(arguments, says, capsys, monkeypatch):
    monkeypatch.setattr(p2p, "_watched", lambda *given: pytest.fail("a process was started"))
    assert p2p.main(["--rehearse", "4", "--json", *arguments]) == 2
    printed = capsys.readouterr()
    assert says in printed.err and json.loads(printed.out)["ok"] is False


def test_the_fabric_of_torch_moves_every_word(monkeypatch):
    """Torch's own devices stand in for cards: the same calls as on CUDA and XPU."""
    import torch

    from xpu_moe.probe._p2p.fabric import TorchFabric

    monkeypatch.setattr(torch.cpu, "Stream", lambda device: torch.cpu.current_stream())
    with pytest.raises(LookupError, match="cannot ask cpu devices for peer access"):
        TorchFabric("cpu", (0, 1)).reachable(0, 1)
    monkeypatch.setattr(torch.cpu, "can_device_access_peer", lambda source, target: source < target, raising=False)
    found = pairs(TorchFabric("cpu", (0, 1)))
    assert all(p.intact and p.gb_per_s > 0 for p in found.values())
    assert found[0, 1].reachable and not found[1, 0].reachable


def test_a_fabric_that_cannot_be_reached_is_an_error():
    with pytest.raises(LookupError, match="no way to cuda cards"):
        import torch

        if torch.cuda.is_available():
            raise LookupError("no way to cuda cards: not tested with a card")
        choose("cuda", None)


def test_a_device_that_nothing_here_reaches_is_a_bad_argument_and_no_verdict(capsys):
    import torch

    from xpu_moe.probe.p2p import main

    missing = "xpu" if torch.cuda.is_available() else "cuda"
    assert main(["--device", missing, "--json"]) == 2
    assert f"--device {missing}: no way to {missing} cards" in json.loads(capsys.readouterr().out)["cannot"]


# ---- the verdict ----------------------------------------------------------------------------------------------------

GROUND = verdict.Ground("xpu", ("0000:03:00.0 0xe223", "0000:04:00.0 0xe223"), "libze 1.6", "6.17.0", "oneccl 2022.1.2")


def made(ok: bool = True, **changes) -> verdict.Verdict:
    both = (verdict.Pair(0, 1, True, ok, 11.3), verdict.Pair(1, 0, True, True, 11.3))
    return replace(verdict.Verdict(ok, "said", (0, 1), both, GROUND, "2026-01-01"), **changes)


def test_a_verdict_comes_back(private_cache):
    assert verdict.peer_access("xpu", on=GROUND) is None
    verdict.save(made())
    assert verdict.load("xpu", GROUND) == made()
    assert verdict.peer_access("xpu", (0, 1), GROUND) is True
    verdict.save(made(False))
    assert verdict.peer_access("xpu", (0, 1), GROUND) is False
    assert verdict.peer_access("xpu", None, GROUND) is False


@pytest.mark.parametrize("part", ["cards", "driver", "kernel", "library"])
def test_a_verdict_dies_with_its_ground(private_cache, part):
    verdict.save(made())
    other = replace(GROUND, **{part: ("other",) if part == "cards" else "other"})
    assert verdict.load("xpu", other) is None


def test_cards_that_were_not_tested_have_no_verdict(private_cache):
    verdict.save(made())
    assert verdict.peer_access("xpu", (0, 2), GROUND) is None
    assert verdict.peer_access("cpu") is None


def test_a_probe_that_hung_proves_nothing(private_cache):
    verdict.save(made(False, pairs=()))
    assert verdict.peer_access("xpu", (0, 1), GROUND) is False
    assert verdict.peer_access("xpu", None, GROUND) is False


def test_a_broken_file_is_no_verdict(private_cache):
    path = verdict.save(made())
    whole = json.loads(path.read_text())
    edited = [{**whole, **part} for part in ({"tested": [[0], 1]}, {"ok": "no"}, {"pairs": [5]}, {"pairs": None})]
    edited.append({**whole, "pairs": [{**whole["pairs"][0], "source": {}}]})
    for text in ("", "{}", "[]", "null", "5", "[" * 100_000, '{"schema": 99}', path.read_text()[:-20],
                 *map(json.dumps, edited)):  # fmt: skip
        path.write_text(text)
        assert verdict.load("xpu", GROUND) is None and verdict.peer_access("xpu", (0, 1), GROUND) is None


def test_the_ground_is_read_from_the_system(tmp_path):
    card = tmp_path / "sys/bus/pci/devices/0000:03:00.0"
    card.mkdir(parents=True)
    for name, text in (("vendor", "0x8086"), ("class", "0x030000"), ("device", "0xe223")):
        (card / name).write_text(text + "\n")
    library = tmp_path / "usr/lib/x86_64-linux-gnu"
    library.mkdir(parents=True)
    (library / "libze_intel_gpu.so.1.6.38308").write_bytes(b"")
    (library / "libze_intel_gpu.so.1").symlink_to("libze_intel_gpu.so.1.6.38308")
    ground = verdict.ground("xpu", tmp_path)
    assert ground.cards == ("0000:03:00.0 0xe223",) and ground.driver == "libze_intel_gpu.so.1.6.38308"
    assert verdict.ground("cuda", tmp_path).cards == ()


def test_the_environment_follows_the_verdict(private_cache, monkeypatch):
    from xpu_moe.env import __main__ as tool
    from xpu_moe.env.profiles import exports, render

    monkeypatch.setattr(verdict, "ground", lambda kind, root=None: replace(GROUND, kind=kind))

    def value() -> str | None:
        return exports(render("default", "xpu", {}, {}, tool.here("xpu", (0, 1)))).get("CCL_TOPO_P2P_ACCESS")

    assert value() is None
    verdict.save(made())
    assert value() == "1"
    verdict.save(made(False))
    assert value() is None


def test_an_unsafe_cache_is_no_verdict(private_cache):
    private_cache.mkdir()
    private_cache.chmod(0o777)
    with pytest.raises(cache.UnsafeCache):
        verdict.save(made())
    assert verdict.peer_access("xpu", (0, 1), GROUND) is None


# ---- the replay verdict of the all-reduce probe ---------------------------------------------------------------------


def replay_result(**changes):
    from xpu_moe.probe._allreduce.plan import Plan, steps
    from xpu_moe.probe._allreduce.report import Result

    plan = Plan("xccl", "xpu", 4, steps("xpu", sizes=[8, 6144]), 30.0, "")
    rows = [{"bytes": s.bytes, "form": s.form, "graph": "replayed", "graph_us": 9.0, "ok": True} for s in plan.steps]
    return replace(Result(plan, rows=rows), **changes)


def test_a_replay_that_passed_is_kept_for_its_world_only(private_cache, monkeypatch):
    from xpu_moe.probe._allreduce import remember

    monkeypatch.setattr(verdict, "ground", lambda kind, root=None: replace(GROUND, kind=kind))
    assert verdict.replay("xpu", 4) is None
    assert remember.replay(replay_result()).startswith("graph replay passed with 4 ranks")
    assert verdict.replay("xpu", 4) is True
    assert verdict.replay("xpu", 2) is None and verdict.replay("cuda", 4) is None and verdict.replay("cpu", 4) is None
    remember.replay(replay_result(wrong=[{"how": "graph replay"}], verdict="wrong"))
    assert verdict.replay("xpu", 4) is False


def test_only_a_run_that_tried_gives_a_replay_verdict():
    from xpu_moe.probe._allreduce.remember import judge

    good = replay_result()
    assert judge(good) == (True, "every size, with changed inputs, and eager afterwards")
    uncaptured = [{**row, "graph": "not captured: no", "graph_us": None} for row in good.rows]
    assert judge(replay_result(rows=uncaptured)) == (False, "not captured: no")
    assert judge(replay_result(verdict="hang", stuck={"phase": "graph"})) == (False, "a hang in it")
    assert judge(replay_result(verdict="hang", stuck={"phase": "init"})) is None
    assert judge(replay_result(verdict="dead", dead=[{"phase": "graph"}])) == (False, "a rank died in it")
    assert judge(replay_result(verdict="interrupted", rows=[])) is None
    for change in (
        {"kind": "cpu"},
        {"graphs": False},
        {"world": 1},
        {"backend": "oneccl"},
        {"steps": good.plan.steps[:2]},
    ):
        assert judge(replay_result(plan=replace(good.plan, **change))) is None
