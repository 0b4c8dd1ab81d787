"""The APIs that upstream models speak: one record each. Installed packages add others (`penstock.providers`).

A provider is imported when a model uses it. `policies/services.py` has the names for the policy language.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from gateway.providers.base import Provider
from gateway.providers.upstream.errors import MAX_NAME_CHARACTERS
from gateway.providers.upstream.redaction import Redactor
from gateway.settings import SettingsError
from policies.plugins import PluginError, broken, load
from policies.upstream import UpstreamModel

GROUP: Final = "penstock.providers"


class UpstreamProvider(Provider, Protocol):
    """A provider that holds connections."""

    async def start(self) -> None:
        """Run once, before the first request."""
        ...

    async def close(self) -> None:
        """Close the connections, after the last request."""
        ...


class ProviderFactory(Protocol):
    """Makes the provider of one model."""

    def __call__(
        self, name: str, upstream: UpstreamModel, api_key: str | None = None, proxy: str = ""
    ) -> UpstreamProvider:
        """`name` is the model's here, `proxy` a URL. Raises SettingsError where something is missing."""
        ...


@dataclass(frozen=True, slots=True)
class ApiSpec:
    """What the gateway knows of an API."""

    provider: ProviderFactory | str  # or "module:name", which is imported when a model uses it
    span_name: str = ""  # OpenTelemetry's gen_ai.provider.name, where it is not the API's name
    extra: str = ""  # of Penstock's package, that installs what the provider imports


OPENAI = ApiSpec("gateway.providers.upstream.openai:OpenAIProvider")
ANTHROPIC = ApiSpec("gateway.providers.upstream.anthropic.provider:AnthropicProvider")
GEMINI = ApiSpec("gateway.providers.upstream.gemini.provider:GeminiProvider", "gcp.gemini")
BEDROCK = ApiSpec("gateway.providers.upstream.bedrock.provider:BedrockProvider", "aws.bedrock", "bedrock")
APIS: Mapping[str, ApiSpec] = {
    "openai": OPENAI,
    "anthropic": ANTHROPIC,
    "gemini": GEMINI,
    "bedrock": BEDROCK,
}


@dataclass(frozen=True, slots=True)
class Api:
    """An API whose provider has been imported."""

    name: str
    span_name: str
    factory: ProviderFactory

    def provider(
        self, model: str, upstream: UpstreamModel, api_key: str | None, proxy: str
    ) -> UpstreamProvider:
        """The provider of one model. Raises SettingsError where something is missing or broken."""
        try:
            return self.factory(model, upstream, api_key, proxy)
        except SettingsError:
            raise
        except Exception as error:
            if self.name in APIS:
                raise
            why = Redactor.of(api_key, proxy).clean(f"{type(error).__name__}: {error}", MAX_NAME_CHARACTERS)
            raise SettingsError(f"model {model!r}: {broken(GROUP, self.name, why)}") from error


def open_api(model: str, name: str) -> Api:
    """The API of a model, with its provider imported. Raises SettingsError where that fails."""
    try:
        spec = APIS.get(name) or load(GROUP, name, ApiSpec)
        return Api(name, spec.span_name or name, _factory(name, spec))
    except PluginError as error:
        raise SettingsError(f"model {model!r}: {error}") from error
    except ImportError as error:
        if not APIS[name].extra:
            raise
        missing = (error.name or "a package").partition(".")[0]
        remedy = f"pip install 'penstock[{APIS[name].extra}]'"
        raise SettingsError(f"model {model!r} needs {missing}: {remedy}") from error


def _factory(name: str, spec: ApiSpec) -> ProviderFactory:
    if not isinstance(spec.provider, str):
        return spec.provider
    try:
        factory: ProviderFactory = pkgutil.resolve_name(spec.provider)
    except Exception as error:
        if name in APIS:
            raise
        raise broken(GROUP, name, f"{type(error).__name__}: {error}") from error
    return factory
