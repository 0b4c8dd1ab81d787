"""`penstock models`: lists, promotes and downloads the releases of models."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from gateway.cli.policy_folder import add_policy_folder, policy_folder

DESCRIPTION = """
The registry of models is the policy folder. A model with a `release` is a new version of another one: as a
canary it gets a share of its requests. `promote` makes a canary the stable release, if its evaluation reaches
`min_accuracy`; `rollback` retires it. Both change one word in the YAML, which a running gateway reads again.
"""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the actions."""
    models = commands.add_parser("models", help="list and promote the releases of models")
    models.description = DESCRIPTION
    models.set_defaults(run=run)
    actions = models.add_subparsers(title="actions", dest="action", required=True, metavar="ACTION")
    listing = actions.add_parser("list", help="list models with version, stage, digest and evaluation")
    show = actions.add_parser("show", help="print all that is known about a model")
    promote = actions.add_parser("promote", help="make a canary the stable release")
    rollback = actions.add_parser("rollback", help="retire a release: the version before answers again")
    pull = actions.add_parser("pull", help="download a version from MLflow ($MLFLOW_TRACKING_URI)")
    for action in (show, promote, rollback):
        action.add_argument("name")
    for action in (listing, show, promote, rollback):
        add_policy_folder(action)
    pull.set_defaults(needs=["mlflow"])
    pull.add_argument("version", metavar="NAME/VERSION", help="or NAME@ALIAS")
    pull.add_argument("folder", type=Path, help="a new folder; its YAML, with digests, is printed")


def run(options: argparse.Namespace) -> int:
    """Do the action. Raises SettingsError or PolicyError."""
    from gateway.cli.releases.command import list_models, show_model
    from gateway.cli.releases.registry import pull
    from gateway.cli.releases.stages import promote, rollback

    if options.action == "pull":
        return pull(options.version, options.folder, sys.stdout)
    name = "" if options.action == "list" else f" {options.name}"
    folder = policy_folder(options, f"penstock models {options.action}{name}")
    if options.action == "list":
        return list_models(folder, sys.stdout)
    act = {"show": show_model, "promote": promote, "rollback": rollback}[options.action]
    return act(folder, options.name, sys.stdout)
