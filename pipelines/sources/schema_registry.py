"""Schemas by the id that messages carry: from a schema registry over HTTP, or from a folder of `<id>.avsc` files.

Speaks the Confluent API, which Apicurio, Karapace, Redpanda and AWS Glue's proxies offer too. An id never changes its
meaning, so what was asked once is kept, up to a bound.
"""

import json
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import Any, Protocol
from urllib.parse import quote

from pipelines.errors import ConfigError, SourceError

MAX_KEPT_SCHEMAS = 1_000
"""A schema has some kilobytes; feeds have one per table and version."""
UNKNOWN_SECONDS = 60.0
"""A schema that the registry does not know is asked for again after so long: replicas lag, people register late."""
TIMEOUT_SECONDS = 10.0
RETRIES = 4
_BACKOFF_SECONDS = 0.2
_MEDIA_TYPE = "application/vnd.schemaregistry.v1+json"
_MAX_REFERENCES = 200
_NOT_FOUND = frozenset({40401, 40402, 40403})
"""Subject, version, schema: a registry's own words. A bare 404 comes from an address where there is none."""


class UnknownSchemaError(SourceError):
    """No schema of this id: the events that carry it cannot be decoded, others can."""


class Schemas(Protocol):
    """Where schemas come from."""

    def document(self, schema_id: int) -> str:
        """The Avro schema of this id as JSON, complete in itself.

        Raises:
            UnknownSchemaError: there is none.
            SourceError: it cannot be told, or is no Avro.
        """
        ...


@dataclass(frozen=True)
class RegistryConfig:
    """A registry.

    Attributes:
        url: base address of the API, e.g. `http://localhost:8081`.
        user: `name:secret` for basic authentication.
        token: bearer token.
        ca: file of certificates to trust.
        timeout_seconds: of one request.
        retries: of requests that fail in passing (no connection, 429, 5xx).
    """

    url: str
    user: str | None = None
    token: str | None = None
    ca: str | None = None
    timeout_seconds: float = TIMEOUT_SECONDS
    retries: int = RETRIES


@lru_cache(maxsize=16)
def registry(config: RegistryConfig) -> "SchemaRegistry":
    """The client of a registry, with what it has kept."""
    return SchemaRegistry(config)


@lru_cache(maxsize=16)
def folder(path: str) -> "SchemaFolder":
    """The schemas in a folder."""
    return SchemaFolder(Path(path))


class SchemaFolder:
    """Schemas in files that are named by their id: `7.avsc`."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def document(self, schema_id: int) -> str:
        """See `Schemas`."""
        if not self._path.is_dir():
            raise ConfigError(f"schemas: no folder {self._path}")
        file = self._path / f"{schema_id}.avsc"
        if not file.is_file():  # nor a FIFO, which would be waited for
            raise UnknownSchemaError(f"no schema {schema_id}: there is no {file.name} in {self._path}")
        return file.read_text("utf-8")


class SchemaRegistry:
    """A client of a schema registry, for any number of threads: they ask one after the other, and each schema once."""

    def __init__(self, config: RegistryConfig) -> None:
        self._config = config
        self._lock = Lock()
        self._kept: OrderedDict[int, str] = OrderedDict()
        self._unknown: OrderedDict[int, float] = OrderedDict()
        self._session: Any | None = None

    def document(self, schema_id: int) -> str:
        """See `Schemas`."""
        with self._lock:
            if schema_id in self._kept:
                self._kept.move_to_end(schema_id)
                return self._kept[schema_id]
            asked = self._unknown.get(schema_id)
            if asked is not None and monotonic() - asked < UNKNOWN_SECONDS:
                raise UnknownSchemaError(f"no schema {schema_id}: the registry {self._config.url} does not know it")
            try:
                return self._asked(schema_id)
            except UnknownSchemaError:
                # Every batch with events of a lost schema would ask again.
                self._unknown[schema_id] = monotonic()
                if len(self._unknown) > MAX_KEPT_SCHEMAS:
                    self._unknown.popitem(last=False)
                raise

    def _asked(self, schema_id: int) -> str:
        found = self._get(f"/schemas/ids/{schema_id}", f"schema {schema_id}")
        kind = found.get("schemaType") or "AVRO"
        if kind != "AVRO":
            raise SourceError(f"schema {schema_id} of {self._config.url} is {kind}; only Avro is supported")
        document = found["schema"]
        if found.get("references"):
            document = json.dumps(self._complete(json.loads(document), self._referenced(found["references"])))
        self._kept[schema_id] = document
        if len(self._kept) > MAX_KEPT_SCHEMAS:
            self._kept.popitem(last=False)
        return str(document)

    def _referenced(self, references: list[Mapping[str, Any]]) -> dict[str, Any]:
        """The schemas that a schema refers to, and those that they do, by name."""
        found: dict[str, Any] = {}
        pending = list(references)
        while pending:
            reference = pending.pop()
            if reference["name"] in found:
                continue
            if len(found) == _MAX_REFERENCES:
                raise SourceError(f"a schema of {self._config.url} refers to more than {_MAX_REFERENCES} others")
            subject, version = (quote(str(reference[name]), safe="") for name in ("subject", "version"))
            place = f"/subjects/{subject}/versions/{version}"
            answer = self._get(place, f"schema {reference['name']}")
            found[reference["name"]] = json.loads(answer["schema"])
            pending += answer.get("references") or []
        return found

    def _complete(self, schema: Any, referenced: dict[str, Any]) -> Any:
        """The schema with each referenced type in place of the first mention of its name."""
        if isinstance(schema, str):
            own = referenced.pop(schema, None)
            return schema if own is None else self._complete(own, referenced)
        if isinstance(schema, list):
            return [self._complete(branch, referenced) for branch in schema]
        if isinstance(schema, dict):
            parts = {n: self._complete(schema[n], referenced) for n in ("type", "items", "values") if n in schema}
            if "fields" in schema:
                parts["fields"] = [self._complete(field, referenced) for field in schema["fields"]]
            return {**schema, **parts}
        return schema

    def _get(self, place: str, what: str) -> Mapping[str, Any]:
        import requests

        url = self._config.url.rstrip("/") + place
        try:
            answer = self._connection().get(url, timeout=self._config.timeout_seconds, allow_redirects=False)
        except requests.exceptions.RequestException as error:
            raise SourceError(f"the schema registry cannot be asked for {what}: {url}: {error}") from error
        if answer.is_redirect:
            raise SourceError(
                f"the schema registry {url} sends elsewhere (HTTP {answer.status_code}), to {answer.headers['Location']}: only "
                "the configured address is asked; configure that one if it is right"
            )
        if answer.status_code in {401, 403}:
            raise SourceError(
                f"the schema registry refuses {url} (HTTP {answer.status_code}): check registry_user or registry_token"
            )
        try:
            document = answer.json()
        except requests.exceptions.JSONDecodeError:
            document = None
        if answer.status_code == 404:
            code = document.get("error_code") if isinstance(document, dict) else None
            if code in _NOT_FOUND:
                raise UnknownSchemaError(f"no {what}: the registry {self._config.url} does not know it")
            raise SourceError(f"no schema registry answers at {url} (HTTP 404): check the address, with its path")
        if not answer.ok or not isinstance(document, dict) or not isinstance(document.get("schema"), str):
            raise SourceError(
                f"{url} did not answer as a schema registry does (HTTP {answer.status_code}): {answer.text[:200]!r}"
            )
        return document

    def _connection(self) -> Any:
        if self._session is None:
            import requests
            from requests.adapters import HTTPAdapter
            from urllib3.util import Retry

            session = requests.Session()
            retry = Retry(
                total=self._config.retries,
                backoff_factor=_BACKOFF_SECONDS,
                status_forcelist=(429, 500, 502, 503, 504),
                allowed_methods=("GET",),
                raise_on_status=False,
            )
            session.mount("http://", HTTPAdapter(max_retries=retry))
            session.mount("https://", HTTPAdapter(max_retries=retry))
            session.headers["Accept"] = f"{_MEDIA_TYPE}, application/json"
            if self._config.user is not None:
                name, _, secret = self._config.user.partition(":")
                session.auth = (name, secret)
            if self._config.token is not None:
                session.headers["Authorization"] = f"Bearer {self._config.token}"
            if self._config.ca is not None:
                session.verify = self._config.ca
            self._session = session
        return self._session
