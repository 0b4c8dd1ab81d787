"""The section `upstream` of a model: an HTTP API that answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from policies.names import EnvironmentName, FilePath
from policies.plugins import Names, known_names
from policies.services import APIS, SERVICES, KeyHeader, ServiceName
from policies.time_limit import check_time
from policies.urls import api_url_fault

Seconds = Annotated[float, Meta(gt=0, le=86400)]
RemoteName = Annotated[
    str, Meta(min_length=1, description="The model's name at the upstream. Default: its name here.")
]
ProxyUrl = Annotated[
    str,
    Meta(
        pattern=r"^https?://[^\s/?#@]+/?$",
        description="HTTP(S) proxy for this upstream, http://HOST:PORT. Default: HTTPS_PROXY, HTTP_PROXY and "
        "NO_PROXY of the environment, where a URL may also hold USER:PASSWORD@.",
    ),
]


BaseUrl = Annotated[str, Meta(pattern=r"^(https?://[^\s/?#@]+(/[^\s?#]*)?)?$")]


class UpstreamTarget(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One place of several that answer for an upstream's model: another URL, or another key of the same."""

    base_url: Annotated[BaseUrl, Meta(description="Default: the upstream's.")] = ""
    api_key_env: Annotated[
        EnvironmentName | None,
        Meta(description="Default: the upstream's. Required at another host, where that one has a key."),
    ] = None
    weight: Annotated[float, Meta(gt=0, le=1e6, description="Its capacity beside that of the others.")] = 1.0
    max_concurrent: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(
            description="Most requests at a time in each gateway worker. Where all targets are full, a "
            "request is retried after 1 s, and then gets a 429."
        ),
    ] = None


class UpstreamModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model behind an HTTP API."""

    service: Annotated[
        ServiceName | None,
        Meta(
            description="A known service: the default of `base_url`, `api`, `api_key_header`, "
            "`rename_fields`, `drop_fields`, `drop_message_fields` and `custom_tools`."
        ),
    ] = None
    api: Annotated[
        str,
        known_names(
            Names("penstock.providers", tuple(sorted(APIS))),
            f"The API that it speaks: {', '.join(f'`{name}` ({about})' for name, about in APIS.items())}.",
        ),
    ] = "openai"
    base_url: Annotated[
        str,
        Meta(
            pattern=r"^(https?://[^\s/?#@]+(/[^\s?#]*)?)?$",
            description="The API's URL without /chat/completions, /messages, /models or "
            "/model, e.g. https://host/v1. Required without a `service`, "
            "unless each of the `targets` has its own.",
        ),
    ] = ""
    targets: Annotated[
        list[UpstreamTarget],
        Meta(
            description="Several places that answer for the model. A request goes to the less loaded of two "
            "healthy ones, the next turns of a conversation to the one that has answered, a retry to "
            "another one. What a target does not say is the upstream's."
        ),
    ] = []
    model: RemoteName | None = None
    api_key_env: EnvironmentName | None = None
    api_key_header: Annotated[
        KeyHeader,
        Meta(
            description="The header that carries the key to an `openai` API: `authorization` as a bearer, "
            "`api-key` for Azure OpenAI."
        ),
    ] = "authorization"
    credentials: Annotated[
        Literal["google"] | None,
        Meta(
            description="`google`: tokens of Application Default Credentials in place of a key, for `gemini` "
            "on Vertex AI, whose base_url is like https://LOCATION-aiplatform.googleapis.com/v1/projects/"
            "PROJECT/locations/LOCATION/publishers/google."
        ),
    ] = None
    rename_fields: Annotated[
        dict[str, str],
        Meta(
            description="Fields of a request to an `openai` API that have another name there, as in "
            "`max_completion_tokens: max_tokens`."
        ),
    ] = {}
    drop_fields: Annotated[
        list[str],
        Meta(
            description="Fields of a request that an `openai` API refuses although they would not change the "
            "answer, such as `user`: they are left out. With `stream_options` the gateway asks for the usage "
            "of streams; without it, it is estimated."
        ),
    ] = []
    drop_message_fields: Annotated[
        list[str],
        Meta(
            description="Fields of earlier answers that an `openai` API refuses in messages, as some do with "
            "`reasoning_content`: they are left out."
        ),
    ] = []
    custom_tools: Annotated[
        bool,
        Meta(
            description="Whether an `openai` API has tools of the type `custom`. If not, those of the "
            "Responses API reach it as functions with one text; those of a chat are passed on in any case."
        ),
    ] = False
    prompt_caching: Annotated[
        bool,
        Meta(
            description="Ask `anthropic` and `bedrock` to cache the prompt up to its last message; others do "
            "so by themselves. Writing costs more there, reading less."
        ),
    ] = False
    default_max_tokens: Annotated[
        int,
        Meta(ge=1, description="Tokens of an answer where the request sets no limit; `anthropic` needs one."),
    ] = 8192
    connect_timeout_s: Seconds = 5.0
    first_token_timeout_s: Annotated[
        Seconds | None,
        Meta(
            description="Of a stream, until its first content; 120 s by default. Where it is set it also "
            "bounds an answer that is not streamed, which arrives as a whole."
        ),
    ] = None
    idle_timeout_s: Seconds = 60.0
    total_timeout_s: Seconds = 900.0
    proxy: ProxyUrl | None = None
    ca_bundle: (
        Annotated[FilePath, Meta(description="PEM file of CAs to trust in place of the system's.")] | None
    ) = None
    http2: Annotated[bool, Meta(description="Negotiate HTTP/2; needs an https base_url.")] = False
    unix_socket: (
        Annotated[FilePath, Meta(description="Connect to this Unix socket instead of the base_url's host.")]
        | None
    ) = None

    def __post_init__(self) -> None:
        """Fill in the service's values where none are given. Raises ValueError without a base_url."""
        if self.service is not None:
            service = SERVICES[self.service]
            for name, default in _UPSTREAM_DEFAULTS.items():
                if getattr(self, name) == default:
                    msgspec.structs.force_setattr(self, name, getattr(service, name))
        if not self.base_url and self.targets and all(target.base_url for target in self.targets):
            msgspec.structs.force_setattr(self, "base_url", self.targets[0].base_url)
        if not self.base_url:
            raise ValueError("needs a base_url, or the name of a known service, or one in each target")

    @property
    def place(self) -> str:
        """What tells it from the others of its model, in logs and metrics: its URL and its key's name."""
        return self.base_url + (f" with {self.api_key_env}" if self.api_key_env else "")

    def places(self) -> dict[str, UpstreamModel]:
        """Each place that answers, as an upstream of its own, by what stands behind the model's name."""
        if not self.targets:
            return {"": self}
        return {f".targets[{number}]": self._at(each) for number, each in enumerate(self.targets)}

    def _at(self, target: UpstreamTarget) -> UpstreamModel:
        url, key = target.base_url or self.base_url, target.api_key_env or self.api_key_env
        return msgspec.structs.replace(self, base_url=url, api_key_env=key, targets=[])


def target_faults(upstream: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with the `targets` of an upstream as it is written, each fault with its remedy."""
    targets = [target for target in upstream.get("targets") or () if isinstance(target, dict)]
    if targets and upstream.get("unix_socket"):
        yield " are several places, and unix_socket is one; remove either"
    service = next((each.base_url for name, each in SERVICES.items() if name == upstream.get("service")), "")
    first_url = targets[0].get("base_url") if targets else ""
    own_url = str(upstream.get("base_url") or service or first_url or "")
    for number, target in enumerate(targets):
        check_time()
        url = str(target.get("base_url") or "")
        if url and (fault := api_url_fault(url)):
            yield f"[{number}].base_url {fault}"
        if target in targets[:number]:
            yield f"[{number}] is the same as one before it; remove it"
        is_elsewhere = url and own_url and urlsplit(url)[:2] != urlsplit(own_url)[:2]
        if is_elsewhere and upstream.get("api_key_env") and not target.get("api_key_env"):
            yield (
                f"[{number}] is at another host than the upstream, whose api_key_env is not sent there; "
                "give each target its own"
            )


_UPSTREAM_DEFAULTS = {
    "base_url": "",
    "api": "openai",
    "api_key_header": "authorization",
    "rename_fields": {},
    "drop_fields": [],
    "drop_message_fields": [],
    "custom_tools": False,
}
