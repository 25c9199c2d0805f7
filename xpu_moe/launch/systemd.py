"""`--print-systemd`: a user unit. Ready after the canary, restarted on failure with a limit, stopped in time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from xpu_moe.env import read
from xpu_moe.launch.plan import LaunchPlan
from xpu_moe.launch.secrets import Masker, is_secret_name

# Longer than the launcher's own clean stop (below 10 s).
STOP_SECONDS = 30
# A checkpoint of 115 GiB from a slow disk, and the first compilation of every kernel.
START_SECONDS = 3600


def quoted(word: str) -> str:
    """A word of Environment: systemd expands %, and splits at blanks."""
    plain = word.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
    return f'"{plain.replace("%", "%%")}"'


def command_word(word: str) -> str:
    """A word of ExecStart, where $ is expanded too."""
    return quoted(word).replace("$", "$$")


def arguments(argv: Sequence[str]) -> list[str]:
    """The launcher's own arguments for the unit: no `--print-systemd`, no secrets."""
    kept: list[str] = []
    secret = False
    for word in argv:
        if word.startswith("-"):
            secret = word.startswith("--") and is_secret_name(word[2:].partition("=")[0])
        if not secret and word not in ("--print-systemd", "--json", "--check"):
            kept.append(word)
    return kept[:-1] if kept and kept[-1] == "--" else kept


def environment(plan: LaunchPlan, project: Path) -> dict[str, str]:
    """What the unit must be told, since systemd does not have the shell's variables: yours, the active environment."""
    kept = {
        row.name: row.value
        for row in plan.environment
        if row.value is not None and row.origin.startswith("yours") and not is_secret_name(row.name)
    }
    root = Path(plan.command[0]).parent.parent
    if root != project / ".venv" and (root / "bin" / "python").exists():
        kept["VIRTUAL_ENV"] = str(root)
    if place := read.text("XPU_MOE_CACHE"):
        kept["XPU_MOE_CACHE"] = place
    return kept


def text(plan: LaunchPlan, argv: Sequence[str], project: Path, masker: Masker) -> str:
    """The unit. `argv` is the command line that was given; values from the environment become flags of it."""
    words = arguments(argv)
    split = words.index("--") if "--" in words else len(words)
    own, extra = words[:split], words[split:]
    for setting in plan.settings.values():
        if setting.origin.startswith("environment"):
            own += [setting.row.flag, str(setting.value)]
    if not plan.demo and "--model" not in own and not any(word.startswith("--model=") for word in own):
        own += ["--model", str(plan.model.path)]
    own = _absolute_model(own, plan)
    command = " ".join(command_word(word) for word in (str(project / "scripts" / "serve_minimax.sh"), *own, *extra))
    name = plan.name.replace("\n", " ")
    kept = "".join(f"Environment={quoted(f'{key}={value}')}\n" for key, value in environment(plan, project).items())
    return masker.text(f"""\
# ~/.config/systemd/user/minimax.service (mkdir -p that folder), then:
#   systemctl --user daemon-reload && systemctl --user enable --now minimax
# An API key goes into ~/.config/minimax.env (mode 0600) as VLLM_API_KEY=…
# To run without a login: loginctl enable-linger
[Unit]
Description=MiniMax served by vLLM ({name.replace("%", "%%")})
StartLimitIntervalSec=3600
StartLimitBurst=3

[Service]
Type=notify
NotifyAccess=all
{kept}EnvironmentFile=-%h/.config/minimax.env
ExecStart={command}
Restart=on-failure
RestartSec=30
# usage, model, preflight and installation do not mend themselves; 130 is a clean stop
RestartPreventExitStatus=2 3
SuccessExitStatus=130
TimeoutStartSec={START_SECONDS}
TimeoutStopSec={STOP_SECONDS}
KillMode=mixed
NoNewPrivileges=yes
LimitMEMLOCK=infinity

[Install]
WantedBy=default.target
""")


def _absolute_model(own: list[str], plan: LaunchPlan) -> list[str]:
    done: list[str] = []
    for index, word in enumerate(own):
        if word.startswith("--model="):
            done.append(f"--model={plan.model.path}")
        elif index and own[index - 1] == "--model":
            done.append(str(plan.model.path))
        else:
            done.append(word)
    return done
