"""The package knows no HTTP and decides fast enough to be asked about every request."""

from __future__ import annotations

import subprocess
import sys


def test_decisions_need_no_torch_and_no_http() -> None:
    code = (
        "import sys, router.estimate, router.strategies; "
        "print([name for name in ('torch', 'starlette', 'httpx2', 'onnxruntime') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
