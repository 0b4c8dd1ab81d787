"""Errors that the person at the terminal can mend: one line each, without secrets."""

from __future__ import annotations

import logging
import sys

from backend.classifiers.weights import WeightsError
from backend.errors import CheckpointError, RequestError
from backend.server.json_log import writes_json
from gateway import settings
from gateway.log import hide, without_hidden
from gateway.settings import SettingsError
from policies.errors import PolicyError

USER_ERRORS = (SettingsError, PolicyError, CheckpointError, RequestError, WeightsError)


def tell(error: Exception) -> None:
    """Write what is wrong to stderr."""
    hide(settings.environment_secrets())
    if writes_json():  # `serve`, which has begun to log
        logging.getLogger("penstock").error("%s", error)
        return
    sys.stderr.write(f"penstock: {without_hidden(str(error))}\n")
