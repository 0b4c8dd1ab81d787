from __future__ import annotations

import json
import struct
from base64 import b64decode

from gateway.openai.embeddings import embeddings_body

VECTORS = [struct.pack("<3f", 0.5, -1.0, 2.0), struct.pack("<3f", 0.0, 1.0, 0.25)]


def test_vectors_are_lists_of_numbers() -> None:
    body = json.loads(embeddings_body(VECTORS, "m", 7, as_base64=False))
    assert [each["embedding"] for each in body["data"]] == [[0.5, -1.0, 2.0], [0.0, 1.0, 0.25]]
    assert [each["index"] for each in body["data"]] == [0, 1]
    assert body["model"] == "m" and body["usage"] == {"prompt_tokens": 7, "total_tokens": 7}


def test_or_base64_of_little_endian_floats() -> None:
    body = json.loads(embeddings_body(VECTORS, "m", 7, as_base64=True))
    assert [b64decode(each["embedding"]) for each in body["data"]] == VECTORS
