"""`python -m xpu_moe.env` from outside."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

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
