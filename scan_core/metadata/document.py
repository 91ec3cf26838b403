"""A JSON object of table metadata, read field by field: every error names the file and the field.

Knows types, not meaning; what the fields mean is the business of `model/table_metadata.py`.
"""

from collections.abc import Mapping
from typing import Any

from scan_core.model.errors import MalformedTableError

MAX_LONG = 2**63 - 1


class Document:
    """One JSON object and where it stands in its file."""

    __slots__ = ("_content", "_file", "_path")

    def __init__(self, file: str, content: Any, path: str = "") -> None:
        if not isinstance(content, Mapping):
            place = f"{path}: " if path else ""
            raise MalformedTableError(f"{file}: {place}expected an object, found {content!r:.60}")
        self._file, self._content, self._path = file, content, path

    def __contains__(self, name: str) -> bool:
        return self._content.get(name) is not None

    @property
    def content(self) -> Mapping[str, Any]:
        """The object itself."""
        return self._content

    def optional_integer(self, name: str) -> int | None:
        """A signed 64-bit integer, or None if absent or null."""
        value = self._content.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not -MAX_LONG - 1 <= value <= MAX_LONG:
            raise self.malformed(name, "a signed 64-bit integer")
        return value

    def integer(self, name: str, default: int | None = None) -> int:
        """A signed 64-bit integer; malformed if it is absent and there is no default."""
        value = self.optional_integer(name)
        if value is None:
            value = default
        if value is None:
            raise self.malformed(name, "a signed 64-bit integer")
        return value

    def optional_text(self, name: str) -> str | None:
        """A string, or None if absent or null."""
        value = self._content.get(name)
        if value is not None and not isinstance(value, str):
            raise self.malformed(name, "a string")
        return value

    def text(self, name: str) -> str:
        """A string; malformed if absent."""
        value = self.optional_text(name)
        if value is None:
            raise self.malformed(name, "a string")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of strings; empty if absent."""
        values = self._list(name)
        if not all(isinstance(v, str) for v in values):
            raise self.malformed(name, "a list of strings")
        return tuple(values)

    def integers(self, name: str) -> tuple[int, ...]:
        """A list of integers; empty if absent."""
        values = self._list(name)
        if not all(isinstance(v, int) and not isinstance(v, bool) for v in values):
            raise self.malformed(name, "a list of integers")
        return tuple(values)

    def mapping(self, name: str) -> Mapping[str, Any]:
        """An object as it is; empty if absent."""
        value = self._content.get(name)
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            raise self.malformed(name, "an object")
        return value

    def text_mapping(self, name: str) -> dict[str, str]:
        """An object of strings; numbers and booleans, which some writers leave bare, as their text."""
        result = {}
        for key, value in self.mapping(name).items():
            if isinstance(value, bool):
                result[key] = str(value).lower()
            elif isinstance(value, str | int | float):
                result[key] = str(value)
            elif value is not None:
                raise self.malformed(f"{name}.{key}", "a string")
        return result

    def objects(self, name: str) -> list["Document"]:
        """A list of objects; empty if absent."""
        return [Document(self._file, item, f"{self._place(name)}[{i}]") for i, item in enumerate(self._list(name))]

    def required_objects(self, name: str) -> list["Document"]:
        """A list of objects, perhaps of none; malformed if absent or null."""
        if name not in self:
            raise self.malformed(name, "a list")
        return self.objects(name)

    def named_objects(self, name: str) -> dict[str, "Document"]:
        """An object of objects; empty if absent."""
        return {k: Document(self._file, v, f"{self._place(name)}.{k}") for k, v in self.mapping(name).items()}

    def malformed(self, name: str, expected: str) -> MalformedTableError:
        """The error for a field that is not what it should be."""
        found = repr(self._content[name])[:60] if name in self._content else "nothing"
        return MalformedTableError(f"{self._file}: {self._place(name)}: expected {expected}, found {found}")

    def _list(self, name: str) -> list[Any]:
        value = self._content.get(name)
        if value is None:
            return []
        if not isinstance(value, list):
            raise self.malformed(name, "a list")
        return value

    def _place(self, name: str) -> str:
        return f"{self._path}.{name}" if self._path else name
