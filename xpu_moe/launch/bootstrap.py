"""From a bare checkout to the right Python: check, install what is missing, hand over to `python -m xpu_moe.launch`.

Runs in the system's Python with nothing but the standard library.
"""

from __future__ import annotations

import sys

if sys.argv[0].endswith("enter.py"):  # scripts/enter.py is at its beginning; the imports below take time
    from xpu_moe import interrupt

    interrupt.expected("serve_minimax")

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from xpu_moe import streams
from xpu_moe.launch import args, detect, main, secrets
from xpu_moe.launch.args import Arguments
from xpu_moe.launch.console import Console
from xpu_moe.launch.environment import inherited
from xpu_moe.launch.errors import EXPECTED
from xpu_moe.launch.install import copied, execute, interpreters, recipes, steps
from xpu_moe.launch.run import interruptible


def start(argv: Sequence[str], project: Path) -> int:
    """Replaces this process with the launcher in its environment; returns only where nothing has to be launched."""
    streams.prepare()
    environ = inherited()
    console = Console(secrets.Masker([*secrets.of_environment(environ), *secrets.of_arguments(argv)]))
    try:
        with interruptible():
            python = _prepare(args.parse(argv), environ, project, console)
    except EXPECTED as error:
        return console.failed(error, argv, "; the next run makes the environment anew")
    if python is None:
        return console.lost
    if python == "":
        return main.main(argv)
    os.execv(python, [python, "-P", "-m", "xpu_moe.launch", *argv])


def _prepare(arguments: Arguments, environ: Mapping[str, str], project: Path, console: Console) -> str | None:
    """The Python to go on in; "" = this one will do; None = all is done."""
    if arguments.canary or arguments.profile == "list":
        return ""
    main.early(arguments, environ)
    device = detect.detect(arguments.device)
    if not arguments.demo:
        detect.refuse_idle_cards(device)
    recipe = recipes.RECIPES[device.kind]
    venv = project / ".venv"
    found = interpreters.active(project, environ)
    if found and found.prefix == venv and execute.state(venv):
        found = None  # our own environment, activated by its user
    if arguments.install_plan:
        _print_plan(found, recipe, project, venv, console, arguments.json)
        return None
    if found:
        return _adopt(found, project, console, dry=_prints(arguments))
    if _prints(arguments):
        ready = execute.state(venv)
        return str(venv / "bin" / "python") if ready and ready["state"] == "ready" else ""
    for note in device.notes:
        console.say(f"note: {note}")
    console.say(f"device: {device.kind} ({device.why})")
    plan = steps.steps(recipe, project, venv, interpreters.for_recipe(recipe))
    return str(execute.ensure(plan, project, venv, console))


def _prints(arguments: Arguments) -> bool:
    return arguments.dry_run or arguments.print_container or arguments.print_systemd


def _adopt(found: interpreters.Active, project: Path, console: Console, *, dry: bool) -> str:
    """An active environment with vLLM is used as it is: our package is added to it, nothing else."""
    versions = ", ".join(f"{name} {version}" for name, version in found.versions.items())
    console.say(f"using the active environment {found.prefix} as it is ({versions})")
    if found.legacy:
        console.say(
            f"note: {', '.join(found.legacy)}: an older Intel stack that current vLLM does not use and that can crash "
            "beside torch's own XPU support; docs/first-day.md tells how to get rid of it"
        )
    if dry:
        return found.python if found.ours else ""
    if not found.ours:
        step = _adding(found, project)
        console.say(f"installing: {step.title}")
        in_place = "-e" in step.argv
        if not in_place:
            copied.make(project)
        execute.run_one(step, project, console)
        if not in_place:
            copied.done(project)
    return found.python


def _adding(found: interpreters.Active, project: Path) -> steps.Step:
    in_place = os.access(project, os.W_OK)
    source = ["-e", str(project)] if in_place else ["--force-reinstall", str(copied.location())]
    argv = (found.python, "-m", "pip", "install", "-q", "--no-deps", *source)
    return steps.Step("this package, without its needs, into the active environment", argv)


def _print_plan(
    found: interpreters.Active | None,
    recipe: recipes.Recipe,
    project: Path,
    venv: Path,
    console: Console,
    as_json: bool,
) -> None:
    if found:
        plan = [] if found.ours else [_adding(found, project)]
        head = f"# the active environment {found.prefix} holds vLLM and is used as it is"
    else:
        plan = steps.steps(recipe, project, venv, interpreters.for_recipe(recipe))
        head = f"# device: {recipe.device}; source: {recipe.source}"
    if as_json:
        rows = [{"title": s.title, "argv": s.argv, "otherwise": s.otherwise, "megabytes": s.megabytes} for s in plan]
        console.out(json.dumps({"device": recipe.device, "venv": str(venv), "steps": rows}))
    else:
        console.out(f"{head}\n{steps.text(plan)}")


if __name__ == "__main__":
    sys.exit(start(sys.argv[1:], Path(__file__).resolve().parents[2]))
