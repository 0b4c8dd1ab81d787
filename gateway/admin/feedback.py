"""POST /v1/feedback: how good an answer was, for the bandits of the policies and for training."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from gateway.accounting.counters import DAY_S
from gateway.accounting.ledger import Ledger
from gateway.auth import KeyRing
from gateway.errors import InvalidRequest
from gateway.exchange.shape import encode
from gateway.requests.parse import decode_body, typed
from gateway.routing.decision_log import LogFile
from gateway.routing.decision_token import DecisionToken, read_token
from gateway.web.http_call import HttpCall
from policies.document import Policies
from router.log import Label

JUDGED_FOR_S = 7 * DAY_S
"""How long an answer can be judged."""


class Feedback(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body."""

    decision: Annotated[str, Meta(min_length=1, max_length=2048)]
    score: Annotated[float, Meta(ge=0.0, le=1.0)]


class DecisionFeedbackEndpoint:
    """Counts the judgement for the model, under the version of the policies that serves it."""

    def __init__(
        self, keys: KeyRing, policies: Policies, ledger: Ledger, log: LogFile | None, max_body_bytes: int
    ) -> None:
        self._keys = keys
        self._ledger = ledger
        self._log = log
        self._max_body_bytes = max_body_bytes
        self._candidates = {
            place: action.choose.candidates
            for place, action in policies.actions()
            if action.choose is not None
        }

    async def judge(self, call: HttpCall) -> None:
        """Answers with what was judged. Raises InvalidRequest for a decision that is not the caller's."""
        principal = self._keys.identify(call.authorization)
        body = typed(decode_body(await call.read_json_bytes(self._max_body_bytes)), Feedback)
        judged = read_token(body.decision, self._keys)
        if judged is None or judged.tenant != principal.tenant or not await self._claim(judged):
            raise InvalidRequest(
                "'decision' must be the header x-penstock-decision of an answer to you, which has not been "
                "judged yet, and is not older than a week.",
                param="decision",
            )
        if judged.model in self._candidates.get(judged.place, ()):
            self._ledger.judge(judged.place, judged.model, body.score)
        if self._log is not None:
            label = Label(label_of=judged.request_id, scores={judged.model: body.score})
            self._log.add(msgspec.json.encode(label) + b"\n")
        await call.respond(encode({"object": "feedback", "model": judged.model, "score": body.score}))

    async def _claim(self, judged: DecisionToken) -> bool:
        counters = self._ledger.counters
        if counters.now_s() - judged.decided_s > JUDGED_FOR_S:
            return False
        return await counters.claim(f"decision:{judged.tenant}:{judged.request_id}", JUDGED_FOR_S + DAY_S)
