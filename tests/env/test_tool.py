"""`python -m xpu_moe.env` from outside."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from xpu_moe.env import __main__ as tool
from xpu_moe.env import show
from xpu_moe.env.read import snapshot

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: str, **environ: str) -> subprocess.CompletedProcess:
    inherited = {k: v for k, v in snapshot().items() if not k.startswith(("CCL_", "NCCL_", "VLLM_", "ZE"))}
    command = [sys.executable, "-m", "xpu_moe.env", *arguments]
    return subprocess.run(command, env={**inherited, **environ}, capture_output=True, text=True, timeout=60)


def test_the_exports_survive_a_shell(tmp_path):
    script = f'eval "$({sys.executable} -m xpu_moe.env --profile no-p2p --device xpu --cards 0,1)"; env'
    environ = {**snapshot(), "XPU_MOE_CACHE": str(tmp_path / "c"), "FI_PROVIDER": "psm3"}
    done = subprocess.run(["bash", "-c", script], env=environ, capture_output=True, text=True, timeout=60)
    lines = done.stdout.splitlines()
    assert "CCL_TOPO_P2P_ACCESS=0" in lines and "ONEAPI_DEVICE_SELECTOR=level_zero:0,1" in lines
    assert "FI_PROVIDER=psm3" in lines, "a value of the user's was replaced"


def test_json_is_one_object_on_stdout():
    done = run("--device", "xpu", "--profile", "graph", "--json", "--assume", "vllm=0.30", CCL_WORKER_COUNT="2")
    report = json.loads(done.stdout)
    assert done.returncode == 1 and done.stderr == ""
    assert report["schema"] == 1 and report["versions"]["vllm"] == "0.30"
    assert {"name": "VLLM_XPU_ENABLE_XPU_GRAPH", "value": "1"}.items() <= next(
        s for s in report["settings"] if s["name"] == "VLLM_XPU_ENABLE_XPU_GRAPH"
    ).items()
    assert report["findings"][0]["name"] == "CCL_WORKER_COUNT"


def test_explain_and_diff(capsys, monkeypatch, private_cache):
    monkeypatch.setenv("CCL_TOPO_P2P_ACCESS", "true")
    monkeypatch.setenv("CCL_ATL_TRANSPORT", "ofi")
    monkeypatch.setenv("FI_PROVIDER", "psm3")
    assert tool.main(["--device", "xpu", "--explain", "CCL_TOPO_P2P_ACCESS"]) == 0
    assert "taken as '0'" in capsys.readouterr().out
    assert tool.main(["--device", "xpu", "--diff"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert "= CCL_ATL_TRANSPORT=ofi" in out and "+ SYCL_CACHE_PERSISTENT=1" in out
    assert "! FI_PROVIDER=psm3 (yours, kept; the profile has tcp)" in out


def test_bad_arguments_end_with_2(capsys, private_cache):
    for bad in (["--profile", "fast"], ["--explain", "NOPE"], ["--cards", "a"], ["--assume", "vllm"]):
        assert tool.main(["--device", "xpu", *bad]) == 2
        assert capsys.readouterr().err.startswith("xpu_moe.env: ")


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (("--cards", "-1"), "--cards: got '-1', wanted indices from 0 on"),
        (("--cards", "0,0,1"), "--cards: got '0,0,1', wanted every card once: 0,1"),
        (("--cards", ""), "--cards: got '', wanted indices"),
        (("--cards", "²"), "--cards: got '²', wanted indices"),
        (("--assume", "vllm=abc"), "--assume: got 'vllm=abc', wanted COMPONENT=VERSION such as vllm=0.30, with one of"),
        (("--assume", "vllm=0..3"), "--assume: got 'vllm=0..3', wanted"),
        (
            ("--profile", "fast"),
            "got 'fast', wanted one of default, no-p2p, stable, graph, no-multicast (several joined",
        ),
    ],
)
def test_a_bad_argument_is_refused_with_the_wanted_form(bad, says, capsys, private_cache):
    assert tool.main(["--device", "xpu", *bad]) == 2
    printed = capsys.readouterr()
    assert says in printed.err and "export" not in printed.out


@pytest.mark.parametrize("version", ["0.30", "v0.32.0", "0.31.0rc1", "2.11.0+xpu", "2022.1.2", "0.31.dev3", "1"])
def test_versions_as_people_write_them_are_assumed(version, capsys, private_cache):
    assert tool.main(["--device", "xpu", "--json", "--assume", f"vllm={version}"]) == 0
    assert json.loads(capsys.readouterr().out)["versions"]["vllm"] == version


def test_explain_says_what_the_launcher_would_refuse(capsys, monkeypatch, private_cache):
    monkeypatch.setenv("TP", "abc")
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert tool.main(["--device", "xpu", "--explain", "TP"]) == 0
    out = capsys.readouterr().out
    assert "'abc', refused; wanted a whole number of at least 1, digits only" in out and "text" not in out
    assert tool.main(["--device", "xpu", "--explain", "OMP_NUM_THREADS"]) == 0
    assert "read as   it stands; how its library parses it is not known here" in capsys.readouterr().out


def test_it_runs_without_torch():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from xpu_moe.env.__main__ import main; raise SystemExit(main(['--device', 'xpu']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "export CCL_ATL_TRANSPORT=ofi" in done.stdout, done.stderr


def test_the_document_is_current():
    text = (ROOT / "docs" / "environment.md").read_text(encoding="utf-8")
    assert text == show.document(), "run: python -m xpu_moe.env --document > docs/environment.md"


def test_a_name_nearly_right_and_a_number_of_cards_get_a_hint(capsys):
    assert tool.main(["--explain", "ccl_atl_transport"]) == 2
    assert "did you mean CCL_ATL_TRANSPORT?" in capsys.readouterr().err
    assert tool.main(["--profile", "b70-tp4-latency", "--device", "xpu"]) == 2
    assert "scripts/serve_minimax.sh --profile" in capsys.readouterr().err
    tool.main(["--device", "xpu", "--cards", "4"])
    assert "4 cards are --cards 0,1,2,3" in capsys.readouterr().err
