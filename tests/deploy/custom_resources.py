"""The fields of custom resources that the chart uses: lists of our own, as no package has their schemas.

They are taken from the definitions of KEDA (v1alpha1), LeaderWorkerSet (v1), InferencePool (v1) and the
Prometheus operator (v1). What is not listed is refused, though a cluster may know it.
"""

from __future__ import annotations

from typing import Any

TEXT = {"type": "string", "minLength": 1}
COUNT = {"type": "integer", "minimum": 1}
PORT = {"type": "integer", "minimum": 1, "maximum": 65535}
TEXTS = {"type": "object", "additionalProperties": {"type": "string"}, "minProperties": 1}
ANY = {"type": "object"}
"""A pod's template: Kubernetes' own schema judges it."""


def record(required: str = "", /, **fields: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": fields,
        "required": required.split(),
        "additionalProperties": False,
    }


def some(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": 1}


def resource(spec: dict[str, Any]) -> dict[str, Any]:
    metadata = record("name labels", name=TEXT, labels=TEXTS)
    return record("apiVersion kind metadata spec", apiVersion=TEXT, kind=TEXT, metadata=metadata, spec=spec)


SELECTOR = record("matchLabels", matchLabels=TEXTS)
SCALE_DOWN = record(
    "policies",
    stabilizationWindowSeconds={"type": "integer", "minimum": 0, "maximum": 3600},
    policies=some(
        record(
            "type value periodSeconds",
            type={"enum": ["Pods", "Percent"]},
            value=COUNT,
            periodSeconds={"type": "integer", "minimum": 1, "maximum": 1800},
        )
    ),
)

FIELDS = {
    ("keda.sh/v1alpha1", "ScaledObject"): resource(
        record(
            "scaleTargetRef triggers",
            scaleTargetRef=record("name", apiVersion=TEXT, kind=TEXT, name=TEXT),
            minReplicaCount=COUNT,
            maxReplicaCount=COUNT,
            pollingInterval=COUNT,
            advanced=record(
                horizontalPodAutoscalerConfig=record(behavior=record(scaleDown=SCALE_DOWN)),
            ),
            triggers=some(
                record(
                    "type metadata",
                    type={"const": "prometheus"},
                    metricType={"enum": ["AverageValue", "Value"]},
                    metadata=record(  # all texts, numbers too
                        "serverAddress query threshold",
                        serverAddress={"type": "string", "pattern": "^https?://"},
                        query=TEXT,
                        threshold={"type": "string", "pattern": r"^[0-9.]+$"},
                        ignoreNullValues={"enum": ["true", "false"]},
                    ),
                )
            ),
        )
    ),
    ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"): resource(
        record(
            "leaderWorkerTemplate",
            replicas=COUNT,
            leaderWorkerTemplate=record(
                "workerTemplate",
                size=COUNT,
                restartPolicy={"enum": ["RecreateGroupOnPodRestart", "RecreateGroupAfterStart", "None"]},
                leaderTemplate=ANY,
                workerTemplate=ANY,
            ),
        )
    ),
    ("inference.networking.k8s.io/v1", "InferencePool"): resource(
        record(
            "selector targetPorts endpointPickerRef",
            selector=SELECTOR,
            targetPorts=some(record("number", number=PORT)),
            endpointPickerRef=record(
                "name port",
                name=TEXT,
                port=record("number", number=PORT),
                failureMode={"enum": ["FailOpen", "FailClose"]},
            ),
        )
    ),
    ("monitoring.coreos.com/v1", "ServiceMonitor"): resource(
        record(
            "selector endpoints",
            selector=SELECTOR,
            endpoints=some(record("port", port=TEXT, path=TEXT, interval=TEXT)),
        )
    ),
}
