"""Runs the application of deploy/ray on a Ray cluster of this process's own, until its stdin ends."""

from __future__ import annotations

import sys
import tempfile

import ray
from ray import serve

from deploy.ray.engines import build


def main() -> None:
    policies, model, min_replicas, max_queue_seconds = sys.argv[1:]
    with tempfile.TemporaryDirectory(prefix="ray") as folder:
        ray.init(
            num_cpus=2,
            include_dashboard=False,
            object_store_memory=80 << 20,
            log_to_driver=False,
            _node_ip_address="127.0.0.1",
            _temp_dir=folder,
        )
        try:
            arguments = {
                "policies": policies,
                "model": model,
                "num_cpus": "0.5",
                "min_replicas": min_replicas,
                "max_queue_seconds": max_queue_seconds,
            }
            serve.run(build(arguments), route_prefix=None)
            handle = serve.get_deployment_handle(f"engine-{model}", "default")
            print(*handle.engine.remote().result(), flush=True)
            sys.stdin.read()
            serve.shutdown()
        finally:
            ray.shutdown()


if __name__ == "__main__":
    main()
