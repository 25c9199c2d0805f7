"""The launch from its command line on. Checks come first and need nothing but Python; then the plan; then the run."""

from __future__ import annotations

import contextlib
import errno
import json
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from xpu_moe import cache, streams
from xpu_moe.env import read
from xpu_moe.launch import (
    args,
    build,
    canary,
    container,
    demo,
    detect,
    folders,
    named,
    own_env,
    preflight,
    secrets,
    systemd,
    watch,
)
from xpu_moe.launch.args import Arguments
from xpu_moe.launch.console import Console
from xpu_moe.launch.environment import inherited
from xpu_moe.launch.errors import CANARY, EXPECTED, INTERRUPTED, OK, USAGE, LaunchError
from xpu_moe.launch.model import Model, check, check_split
from xpu_moe.launch.plan import LaunchPlan, facts_of, pairs
from xpu_moe.launch.run import Run, interruptible, is_real
from xpu_moe.launch.settings import Setting

PROJECT = Path(__file__).resolve().parents[2]


def main(argv: Sequence[str]) -> int:
    """Launch; returns the exit code (see errors.py). Everything that goes wrong is one line on stderr."""
    streams.prepare()
    environ = inherited()
    masker = secrets.Masker([*secrets.of_environment(environ), *secrets.of_arguments(argv)])
    console = Console(masker)
    try:
        with interruptible():
            return _main(args.parse(argv), list(argv), environ, console)
    except EXPECTED as error:
        return console.failed(error, argv)


def _main(arguments: Arguments, argv: list[str], environ: Mapping[str, str], console: Console) -> int:
    console.json = arguments.json
    if arguments.profile == "list":
        return console.out(json.dumps(named.table()) if arguments.json else named.listing())
    if arguments.canary:
        return ask_running(arguments, environ, console)
    if arguments.install_plan:
        raise LaunchError(
            USAGE, "--install-plan: this module installs nothing; wanted scripts/serve_minimax.sh --install-plan"
        )
    model = early(arguments, environ)
    device = detect.detect(arguments.device)
    if not arguments.demo:
        detect.refuse_idle_cards(device)
    dry = arguments.dry_run or arguments.print_container or arguments.print_systemd
    if model is None:
        model = planned_demo() if dry else check(str(demo.ensure(console)))
    folder = folders.planned() if dry else folders.make()
    plan = build.build(arguments, model, device, environ, vllm=vllm_command(), run_folder=folder, make_folders=not dry)
    _cut(plan.model, plan.settings, arguments)  # once more, with what the profile gave
    if dry:
        if not arguments.force:
            preflight.refuse_impossible(plan.model, plan.facts(), plan.settings, environ)
        return _print(arguments, argv, plan, console)
    for note in plan.notes:
        console.say(f"note: {note}")
    deep = preflight.is_deep(plan, arguments.preflight)
    findings = preflight.run(plan, plan.child_environment(environ), console, force=arguments.force, deep=deep)
    run = Run(plan, folder, console, environ)
    code = run.serve(check=arguments.check, findings=findings)
    summary = run.summary(code)
    with contextlib.suppress(OSError):  # a full disk does not change how the run went
        (folder / "summary.json").write_text(console.masker.text(json.dumps(summary, indent=1)), encoding="utf-8")
    if arguments.json:
        console.out(json.dumps(summary))
    if code not in (OK, INTERRUPTED):
        console.plain(f"serve_minimax: {summary['error']}; the log is {summary['log']}")
    return code or console.lost


def early(arguments: Arguments, environ: Mapping[str, str]) -> Model | None:
    """What can be checked before anything is made: values, model folder, port. None for the demo."""
    own_env.check(environ)
    chosen = build.resolve(arguments, environ)
    chosen = build.with_extra(chosen, arguments.extra)
    build.check_lengths(chosen)
    watch.limit(environ)
    if arguments.demo:
        model = None
        _cut(planned_demo(), chosen, arguments)
        _possible(planned_demo(), chosen, arguments, environ)
    else:
        path = arguments.model or read.text("MODEL", environ)
        if not path and arguments.install_plan:
            return None
        if not path:
            raise LaunchError(USAGE, "nothing to serve: give --model PATH (or MODEL=PATH), or --demo")
        try:
            model = check(path)
        except LaunchError as error:
            raise error if arguments.model else LaunchError(error.code, f"variable MODEL: {error}") from None
        _cut(model, chosen, arguments)
        _possible(model, chosen, arguments, environ)
    if not (arguments.dry_run or arguments.install_plan or arguments.print_container or arguments.print_systemd):
        free_port(chosen)
    return model


def _cut(model: Model, chosen: Mapping[str, Setting], arguments: Arguments) -> None:
    """LaunchError(USAGE) where the model cannot be cut as asked."""
    whole_experts = any(flag in ("--enable-expert-parallel", "-ep") for flag, _ in pairs(arguments.extra))
    tp, pp = chosen["tp"].value, chosen["pp"].value
    check_split(model, tp, pp, expert_parallel=whole_experts, force=arguments.force)


def _possible(model: Model, chosen: Mapping[str, Setting], arguments: Arguments, environ: Mapping[str, str]) -> None:
    """LaunchError(USAGE) for a value that cannot be; where a profile has its say, once the plan is made."""
    if not arguments.profile and not arguments.force:
        kind = detect.detect(arguments.device).kind
        preflight.refuse_impossible(model, facts_of(kind, chosen, arguments.extra), chosen, environ)


def free_port(chosen: Mapping[str, Setting]) -> None:
    """LaunchError(USAGE) where the address cannot be listened on."""
    host, port = str(chosen["host"].value), int(chosen["port"].value)
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with contextlib.closing(socket.socket(family, kind, protocol)) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind(address)
    except UnicodeError:  # what getaddrinfo says of a label of more than 63 characters
        raise LaunchError(USAGE, f"--host {host!r}: wanted an address or a host name") from None
    except OSError as error:
        other = "--port" if error.errno == errno.EADDRINUSE else "--host or --port"
        raise LaunchError(USAGE, f"--host {host} --port {port}: {error.strerror}; choose another {other}") from None


def planned_demo() -> Model:
    """The demo's model before it is written: sizes from the demo room."""
    from xpu_moe.demo.shape import Shape, config

    return Model(demo.planned(), config(Shape(), 320, 1, 2), "auto-round", ())


def vllm_command() -> str:
    """The vllm command: XPU_MOE_VLLM, else the one beside this Python, else the active environment's (a plan for one
    that our package is not in yet is made outside of it), else the one of `.venv` to come."""
    given = read.text("XPU_MOE_VLLM")
    if given:
        return given
    active = [root for name in ("VIRTUAL_ENV", "CONDA_PREFIX") if (root := read.text(name))]
    for found in (Path(sys.executable).parent / "vllm", *(Path(root) / "bin" / "vllm" for root in active)):
        if found.exists():
            return str(found)
    return str(PROJECT / ".venv" / "bin" / "vllm")


def _print(arguments: Arguments, argv: list[str], plan: LaunchPlan, console: Console) -> int:
    if arguments.print_container:
        line = container.text(plan, str(PROJECT), str(cache.location()), console.masker)
        return console.out(json.dumps({"container": line}) if arguments.json else line)
    if arguments.print_systemd:
        unit = systemd.text(plan, argv, PROJECT, console.masker)
        return console.out(json.dumps({"systemd": unit}) if arguments.json else unit)
    findings = [] if arguments.demo else preflight.of_files(plan)
    if arguments.json:
        found = {**plan.as_dict(console.masker), "preflight": [finding.as_dict() for finding in findings]}
        code = console.out(json.dumps(found))
    else:
        code = console.out(plan.text(console.masker))
    if not arguments.demo:
        preflight.say_files(plan, findings, console)
    return code


def ask_running(arguments: Arguments, environ: Mapping[str, str], console: Console) -> int:
    """`--canary`: ask the server that runs on --host and --port."""
    chosen = build.resolve(arguments, environ)
    host, port = str(chosen["host"].value), chosen["port"].value
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    key = environ.get("VLLM_API_KEY", "")
    path = arguments.model or read.text("MODEL", environ)
    real = bool(path) and is_real(check(str(path)))
    try:
        name = str(chosen["served_model_name"].value or canary.Client(url, "", key, 10).first_model())
        result = canary.ask(canary.Client(url, name, key), real=real)
    except canary.CanaryFailed as error:
        more = "; does a server run there? --host and --port say where" if "refused" in str(error) else ""
        raise LaunchError(CANARY, f"canary: {url}: {error}{more}") from None
    if arguments.json:
        return console.out(json.dumps({"ok": True, "url": url, "model": name, **vars(result)}))
    return console.out(f"canary: {url}: {name} answers {result.completion!r}")
