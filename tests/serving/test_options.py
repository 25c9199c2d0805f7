"""Options travel through --additional-config unchanged, refuse what they do not know, and change the fingerprint."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from xpu_moe.serving import options
from xpu_moe.serving.options import BadOption, Options


def test_defaults_survive_the_command_line():
    text = json.dumps(Options().additional_config({"other": 1}))
    assert Options.read(json.loads(text)) == Options()
    assert json.loads(text)["other"] == 1


def test_the_users_entry_wins_over_the_launchers():
    config = Options(decode_limit=4, backend="a").additional_config({"xpu_moe": {"decode_limit": 8}})
    assert Options.read(config) == Options(decode_limit=8, backend="a")


@pytest.mark.parametrize(
    "entry, named",
    [
        ({"decode_limits": 4}, "decode_limits"),
        ({"decode_limit": 0}, "decode_limit"),
        ({"decode_limit": "4"}, "decode_limit"),
        ({"decode_limit": True}, "decode_limit"),
        ({"prefill": "marlin"}, "prefill"),
        ({"routed": True}, "routed"),
        ({"hooks": "auto"}, "hooks"),
        ({"backend": 3}, "backend"),
        ([], "object"),
    ],
)
def test_a_wrong_entry_is_an_error_that_names_it(entry, named):
    with pytest.raises(BadOption, match=named):
        Options.read({"xpu_moe": entry})


@pytest.mark.parametrize("config", [{}, None, object(), {"somebody_else": {}}])
def test_no_entry_means_defaults(config):
    assert Options.read(config) == Options()


def test_the_fingerprint_follows_choice_version_and_sources(monkeypatch):
    plain = Options().fingerprint()
    assert Options(backend="cpu_grouped").fingerprint() != plain
    assert Options(hooks=("auto", "auto")).fingerprint() == plain
    monkeypatch.setattr(options, "__version__", "9.9")
    assert Options().fingerprint() != plain
    monkeypatch.undo()
    monkeypatch.setattr(options, "_sources", lambda: "edited")
    assert Options().fingerprint() != plain


def test_a_stale_fingerprint_in_the_config_is_replaced():
    config = Options().additional_config({"xpu_moe": {"fingerprint": "old"}})
    assert config["xpu_moe"]["fingerprint"] == Options().fingerprint()


def test_a_launcher_needs_neither_torch_nor_vllm():
    code = (
        "import sys; import xpu_moe.serving.options, xpu_moe.serving.report, xpu_moe.formats.claims;"
        "import xpu_moe.serving.hooks.table; print([m for m in ('torch', 'vllm') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
