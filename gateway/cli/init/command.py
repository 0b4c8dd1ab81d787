"""Writes the folder, all of it or nothing, and only if `penstock check` passes."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from backend.errors import CheckpointError
from backend.server.engine_check import check_model
from gateway.admin.policy_check import load_checked
from gateway.checkpoints import checkpoint_folder
from gateway.cli.init.ask import ask_plan, checkpoint_of
from gateway.cli.init.documents import documents
from gateway.cli.init.plan import ROUTE, Plan, make_plan
from gateway.settings import SettingsError
from policies.errors import PolicyError

EXIT_STOPPED = 1
_FILE_MODE, _FOLDER_MODE = 0o644, 0o755


def init(options: argparse.Namespace, out: TextIO) -> int:
    """Ask or read the flags, write, and tell what comes next. Returns the exit code. Raises SettingsError."""
    refuse_existing(options.folder)
    given = (options.model, options.upstream, options.key_env, options.tenant)
    is_silent = any(given) or options.embedded is not None or options.cache or options.guardrails
    if is_silent or options.yes or not (sys.stdin.isatty() and sys.stdout.isatty()):
        plan = make_plan(
            *given,
            embedded=options.embedded,
            cache=options.cache or "exact",
            guardrails=options.guardrails or "mask",
        )
    else:
        try:
            plan = ask_plan(input, out.write, _check_engine)
        except EOFError:
            sys.stderr.write("\npenstock: the answers ended early; nothing is written\n")
            return EXIT_STOPPED
    write_folder(options.folder, plan)
    out.writelines(f"{line}\n" for line in _next_steps(options.folder, plan))
    return 0


def refuse_existing(folder: Path) -> None:
    """Raise SettingsError unless there is nothing at the path, or an empty folder."""
    if folder.is_dir() and not folder.is_symlink():
        if any(folder.iterdir()):
            raise SettingsError(
                f"{str(folder)!r} is not empty, and nothing is overwritten: name a new folder"
            )
    elif os.path.lexists(folder):
        raise SettingsError(f"{str(folder)!r} exists and is no folder: name a new one")


def write_folder(folder: Path, plan: Plan) -> None:
    """Write the files beside the folder, check them, and give the whole the folder's name.

    Raises SettingsError.
    """
    target = folder.absolute()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    except OSError as error:
        raise SettingsError(f"{str(folder)!r} cannot be made: {error.strerror}") from None
    try:
        for name, text in documents(plan).items():
            (made / name).write_text(text, "utf-8")
            (made / name).chmod(_FILE_MODE)
        made.chmod(_FOLDER_MODE)
        load_checked(made)
        os.rename(made, target)  # fails where another has filled the folder meanwhile
    except PolicyError as error:
        faults = "\n  ".join(problem.message for problem in error.problems)
        raise SettingsError(f"such a folder cannot be served, and is not written:\n  {faults}") from None
    except OSError as error:
        raise SettingsError(f"{str(folder)!r} cannot be written: {error.strerror}") from None
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _check_engine(text: str) -> None:
    try:
        check_model(checkpoint_folder(checkpoint_of(text)))
    except CheckpointError as error:
        raise SettingsError(str(error)) from None


def _next_steps(folder: Path, plan: Plan) -> Iterator[str]:
    """What to type, in order. Keys that were made are shown here and nowhere else."""
    yield f"{folder}: {', '.join(sorted(documents(plan)))}"
    if made := [each for each in plan.tenants if each.key]:
        yield "\nThese keys are shown once and are in no file; keep them:"
        yield from (f"  {each.name:<16} {each.key}" for each in made)
    yield "\nNext:"
    variables = dict.fromkeys(each.key_variable for each in plan.upstreams if each.key_variable)
    yield from (f"  export {name}=…" for name in variables if not os.environ.get(name))
    if plan.tenants:
        keys = [each.key for each in made] + ["…"] * (len(made) < len(plan.tenants))
        yield f"  export PENSTOCK_API_KEYS={','.join(keys)}"
    yield f"  penstock check {folder}"
    yield f"  penstock serve --policies {folder}"
    yield f"  penstock chat --model {ROUTE} 'What is 17 + 25?'"
