"""The policies as one YAML document, with every default."""

from __future__ import annotations

import msgspec
import yaml

from policies.document import Policies


def shown(policies: Policies) -> str:
    """YAML that defines the same policies; the comment on its first line has their version.

    What has no value, such as a model without a price, is left out.
    """
    sections = msgspec.to_builtins(policies)
    version = sections.pop("version")
    text = yaml.safe_dump(_without_nulls(sections), sort_keys=False, allow_unicode=True, width=110)
    return f"# version {version}\n{text}"


def _without_nulls(value: object) -> object:
    if isinstance(value, dict):
        return {key: _without_nulls(each) for key, each in value.items() if each is not None}
    return [_without_nulls(each) for each in value] if isinstance(value, list) else value
