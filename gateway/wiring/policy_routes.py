"""The routes of the console that read, check and change the files of the policies."""

from __future__ import annotations

from pathlib import Path

from starlette.routing import Route

from gateway.admin.access import AdminAccess
from gateway.admin.policy_changes import PolicyChanges
from gateway.admin.policy_drafts import Drafts
from gateway.admin.policy_files import PolicyFolder
from gateway.auth import KeyRing
from gateway.exchange.prompt_embedding import Embed
from gateway.settings import Settings
from gateway.web.asgi_endpoint import RouteBuilder
from gateway.wiring.worker_parts import WorkerParts
from policies.document import Policies


def policy_routes(
    endpoints: RouteBuilder,
    access: AdminAccess,
    settings: Settings,
    policies: Policies,
    keys: KeyRing,
    parts: WorkerParts,
    embed: Embed,
) -> list[Route]:
    """What changes the files of the policies; none without files, or where they say `console: off`."""
    if not policies.console or not settings.policy_folder:
        return []
    folder = PolicyFolder(Path(settings.policy_folder), settings.secrets)
    changes = PolicyChanges(
        access,
        parts.policies,
        folder,
        Drafts(folder, policies, lambda: keys.tenants),
        parts.drafts,
        embed=embed,
        decision_log=settings.decision_log,
    )
    handlers = {"check": changes.check, "replay": changes.replay, "apply": changes.apply}
    paths = [endpoints.route("POST", f"/admin/policies/{n}", "other", each) for n, each in handlers.items()]
    return [endpoints.route("GET", "/admin/policies/files", "other", changes.show), *paths]
