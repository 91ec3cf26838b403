"""Schemas of messages by their id, from a schema registry or a folder.

A registry is asked by the API of Confluent's, which Karapace, Redpanda and Apicurio also have. What a schema means is in
`avro.py`, `protobuf.py` and `formats/debezium_json.py`.
"""

from base64 import b64encode
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import Any, Protocol
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nevermore.pipelines.errors import ConfigError, SourceError

MAX_KEPT_SCHEMAS = 1_000
"""Limits the cache: a schema has a few kilobytes; feeds have one per table and version."""
UNKNOWN_SECONDS = 60.0
"""An unknown schema is asked for again after this time: replicas lag, and schemas are registered late."""
TIMEOUT_SECONDS = 10.0
RETRIES = 4
_BACKOFF_SECONDS = 0.2
_MEDIA_TYPE = "application/vnd.schemaregistry.v1+json"
_MAX_REFERENCES = 200
_FRAME_BYTES = 5
"""A zero byte and the id of the schema, which serializers with a schema registry put in front of a message."""
_NOT_FOUND = frozenset({40401, 40402, 40403})
"""Error codes of a registry: subject, version or schema not found. A bare 404 means that there is no registry."""


class SchemaKind(Enum):
    """Languages of schemas, by the names that registries give them."""

    AVRO = "AVRO"
    PROTOBUF = "PROTOBUF"
    JSON = "JSON"

    @property
    def suffix(self) -> str:
        """How the files of a folder end."""
        return {"AVRO": ".avsc", "PROTOBUF": ".desc", "JSON": ".json"}[self.value]

    @property
    def format(self) -> str:
        """The format of messages with such schemas."""
        return {"AVRO": "debezium-avro", "PROTOBUF": "debezium-protobuf", "JSON": "debezium-json"}[self.value]


@dataclass(frozen=True)
class RegisteredSchema:
    """A schema, and those that it refers to directly or indirectly.

    Attributes:
        text: JSON, or for Protobuf a serialized FileDescriptorProto in base64.
        references: name and text of each of the others.
    """

    text: str
    references: tuple[tuple[str, str], ...] = ()


class UnknownSchemaError(SourceError):
    """There is no schema of this id: events with it cannot be decoded, others can."""


class Schemas(Protocol):
    """Source of schemas."""

    def schema(self, schema_id: int, kind: SchemaKind) -> RegisteredSchema:
        """Get the schema of this id.

        Raises:
            UnknownSchemaError: there is no such schema.
            SourceError: the schema cannot be fetched, or is of another kind.
        """
        ...


@dataclass(frozen=True)
class Unframed:
    """Documents without the frame of a schema registry, and the id of the schema that the frame of each names."""

    values: pa.BinaryArray
    ids: pa.Int64Array


def unframed(documents: pa.Array, *, is_text: bool | None) -> Unframed:
    """JSON texts without the frame of a schema registry: no JSON text begins with a zero byte.

    If it is not known whether the messages are text (None), only those with a JSON object after the frame count as framed.
    """
    if is_text is False:
        return Unframed(documents, pa.nulls(len(documents), pa.int64()))
    is_framed = pc.and_(pc.starts_with(documents, b"\0"), pc.greater_equal(pc.binary_length(documents), _FRAME_BYTES))
    if is_text is None:
        is_framed = pc.and_(is_framed, pc.match_substring_regex(documents, r"(?s)^.{5}[{].*[}]$"))
    if not pc.any(is_framed).as_py():
        return Unframed(documents, pa.nulls(len(documents), pa.int64()))
    only = pc.if_else(is_framed, documents, b"\0" * _FRAME_BYTES)
    heads = pc.fill_null(pc.binary_slice(only, 1, _FRAME_BYTES), bytes(4)).cast(pa.binary(4))
    numbers = np.frombuffer(heads.buffers()[1], ">u4")[heads.offset : heads.offset + len(heads)].astype(np.int64)
    ids = pa.array(numbers, mask=~np.asarray(is_framed.fill_null(False)))
    # Without an end, Arrow multiplies the number of values with the largest integer, and fails on even numbers.
    texts = pc.binary_slice(only, _FRAME_BYTES, np.iinfo(np.int32).max)
    return Unframed(pc.if_else(is_framed, texts, documents), ids)


def framed(documents: pa.BinaryArray, ids: pa.Int64Array) -> pa.BinaryArray:
    """Texts with the frame of a schema registry in front of those that have an id: `unframed` takes it away."""
    numbers = np.asarray(ids.fill_null(0)).astype(">u4")
    frames = np.zeros((len(ids), _FRAME_BYTES), np.uint8)
    frames[:, 1:] = numbers.view(np.uint8).reshape(-1, 4)
    heads = pa.Array.from_buffers(pa.binary(_FRAME_BYTES), len(ids), [None, pa.py_buffer(frames)]).cast(pa.binary())
    whole = pc.binary_join_element_wise(heads, documents, pa.scalar(b"", pa.binary()))
    return pc.if_else(ids.is_valid(), whole, documents)


@dataclass(frozen=True)
class RegistryConfig:
    """Address and access of a schema registry.

    Attributes:
        url: base address of the API, e.g. `http://localhost:8081`.
        user: `name:secret` for basic authentication.
        token: bearer token.
        ca: file of certificates to trust.
        timeout_seconds: timeout of one request.
        retries: retries of requests that fail temporarily (no connection, 429, 5xx).
    """

    url: str
    user: str | None = None
    token: str | None = None
    ca: str | None = None
    timeout_seconds: float = TIMEOUT_SECONDS
    retries: int = RETRIES


@lru_cache(maxsize=16)
def registry(config: RegistryConfig) -> "SchemaRegistry":
    """The client of a registry, with its cache."""
    return SchemaRegistry(config)


@lru_cache(maxsize=16)
def folder(path: str) -> "SchemaFolder":
    """Use the schemas in a folder."""
    return SchemaFolder(Path(path))


class SchemaFolder:
    """Schemas in files named by their id: `7.avsc`, `7.json`, and `7.desc` as `protoc --descriptor_set_out` writes it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def schema(self, schema_id: int, kind: SchemaKind) -> RegisteredSchema:
        """See `Schemas`."""
        if not self._path.is_dir():
            raise ConfigError(f"schemas: no folder {self._path}")
        file = self._path / f"{schema_id}{kind.suffix}"
        try:
            if file.is_file():
                content = file.read_bytes()
                return _of_file_set(content) if kind is SchemaKind.PROTOBUF else RegisteredSchema(content.decode())
            if file.exists() or file.is_symlink():  # a FIFO would block
                raise ConfigError(f"schemas: {file} is not a plain file: replace it by the schema with this id")
        except (OSError, ValueError) as error:
            raise ConfigError(f"schemas: {file} cannot be read: {error}") from error
        raise UnknownSchemaError(f"no schema {schema_id}: there is no {file.name} in {self._path}")


def _of_file_set(content: bytes) -> RegisteredSchema:
    """The schema in a FileDescriptorSet, in which each file follows those that it imports.

    Raises:
        ValueError: not such a set.
    """
    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    from google.protobuf.message import DecodeError

    try:
        files = FileDescriptorSet.FromString(content).file
    except DecodeError as error:
        raise ValueError(f"not a set of file descriptors, as protoc --descriptor_set_out writes it: {error}") from error
    if not files:
        raise ValueError("a set of file descriptors without a file")
    texts = [(file.name, b64encode(file.SerializeToString()).decode()) for file in files]
    return RegisteredSchema(texts[-1][1], tuple(texts[:-1]))


class SchemaRegistry:
    """Client of a schema registry, safe for threads: they take turns, and each schema is fetched once."""

    def __init__(self, config: RegistryConfig) -> None:
        self._config = config
        self._lock = Lock()
        self._kept = lru_cache(MAX_KEPT_SCHEMAS)(self._asked)
        self._unknown: OrderedDict[int, float] = OrderedDict()
        self._session: Any | None = None

    def schema(self, schema_id: int, kind: SchemaKind) -> RegisteredSchema:
        """See `Schemas`."""
        with self._lock:
            asked = self._unknown.get(schema_id)
            if asked is not None and monotonic() - asked < UNKNOWN_SECONDS:
                raise UnknownSchemaError(f"no schema {schema_id}: the registry {self._config.url} does not know it")
            try:
                return self._kept(schema_id, kind)
            except UnknownSchemaError:
                # Otherwise every batch with events of a lost schema would ask again.
                self._unknown[schema_id] = monotonic()
                if len(self._unknown) > MAX_KEPT_SCHEMAS:
                    self._unknown.popitem(last=False)
                raise

    def _asked(self, schema_id: int, kind: SchemaKind) -> RegisteredSchema:
        found = self._get(f"/schemas/ids/{schema_id}", f"schema {schema_id}", kind)
        own = found.get("schemaType") or "AVRO"
        if own != kind.value:
            known = next((k.format for k in SchemaKind if k.value == own), None)
            hint = f"set format: {known}" if known else "there is no format for it"
            raise SourceError(
                f"schema {schema_id} of {self._config.url} is {own}, and format {kind.format} reads {kind.value}: {hint}"
            )
        return RegisteredSchema(found["schema"], self._referenced(found.get("references") or [], kind))

    def _referenced(self, references: list[Mapping[str, Any]], kind: SchemaKind) -> tuple[tuple[str, str], ...]:
        """The schemas that a schema references, directly or indirectly, by name."""
        found: dict[str, str] = {}
        pending = list(references)
        while pending:
            reference = pending.pop()
            if reference["name"] in found:
                continue
            if len(found) == _MAX_REFERENCES:
                raise SourceError(f"a schema of {self._config.url} refers to more than {_MAX_REFERENCES} others")
            subject, version = (quote(str(reference[name]), safe="") for name in ("subject", "version"))
            answer = self._get(f"/subjects/{subject}/versions/{version}", f"schema {reference['name']}", kind)
            found[reference["name"]] = answer["schema"]
            pending += answer.get("references") or []
        return tuple(found.items())

    def _get(self, place: str, what: str, kind: SchemaKind) -> Mapping[str, Any]:
        import requests

        # Protobuf is asked for as a descriptor: its text would have to be compiled.
        query = "?format=serialized" if kind is SchemaKind.PROTOBUF else ""
        url = f"{self._config.url.rstrip('/')}{place}{query}"
        try:
            # Given here: for a session, REQUESTS_CA_BUNDLE of the environment would count instead.
            answer = self._connection().get(
                url, timeout=self._config.timeout_seconds, allow_redirects=False, verify=self._config.ca
            )
        except requests.exceptions.RequestException as error:
            raise SourceError(f"cannot fetch {what} from the schema registry: {url}: {error}") from error
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
            self._session = session
        return self._session
