"""A config file as YAML: its values, with the environment filled in, and the line of every one of them."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from pipelines.errors import ConfigError
from scan_core.secret_values import remember, remember_passwords

MAX_CHARACTERS = 1_000_000
MAX_VALUES = 100_000
MAX_DEPTH = 50
"""Far beyond any config; YAML of a few lines can stand for more than memory holds."""
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_SECRET = re.compile(r"pass|secret|token|credential|key_id|access|user|auth", re.IGNORECASE)
"""In names of options whose values are nobody's business."""
_TEXT_KEYS = frozenset({"tag:yaml.org,2002:str", "tag:yaml.org,2002:merge"})


@dataclass(frozen=True, slots=True)
class ConfigDocument:
    """A parsed file. A place is the keys and indexes from the top down to a value."""

    path: str
    root: yaml.MappingNode
    raw: Mapping[str, Any]

    @classmethod
    def of(cls, text: str, path: str | Path) -> "ConfigDocument":
        """The document in a text.

        Raises:
            ConfigError: not YAML, too large or too deeply nested, not a mapping, a key given twice or one that is no text.
        """
        try:
            _check_shape(text, path)
            root = yaml.compose(text, Loader=_Loader)
            raw = yaml.load(text, Loader=_Loader)  # noqa: S506 - a SafeLoader
        except yaml.YAMLError as error:
            raise ConfigError(_not_yaml(error, path)) from error
        if not isinstance(raw, Mapping) or not isinstance(root, yaml.MappingNode):
            raise ConfigError(
                f"{path}: a config has the sections catalog, tables and published; `nevermore init` writes one"
            )
        document = cls(str(path), root, raw)
        document._check_keys(root)
        return document

    def values(self) -> dict[str, Any]:
        """The values with ${NAME} and ${NAME:-default} replaced from the environment.

        Raises:
            ConfigError: a variable that is not set and has no default.
        """
        filled: dict[str, Any] = self._filled(self.raw, ())
        return filled

    def where(self, place: Sequence[str | int]) -> str:
        """`file:line` of a place, or of the deepest part of it that is there."""
        node: yaml.Node = self.root
        line = node.start_mark.line
        for step in place:
            if isinstance(node, yaml.MappingNode):
                found = next(((k, v) for k, v in node.value if k.value == str(step)), None)
                if found is None:
                    break
                line, node = found[0].start_mark.line, found[1]
            elif isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
                node = node.value[step]
                line = node.start_mark.line
            else:
                break
        return f"{self.path}:{line + 1}"

    def may_show(self, place: Sequence[str | int]) -> bool:
        """Whether a message may show what stands at a place: nothing of the environment, and nothing of a catalog."""
        value: Any = self.raw
        for step in place[: self.depth(place)]:
            value = value[step]
        is_secret = bool(place) and (place[0] == "catalog" or _SECRET.search(str(place[-1])) is not None)
        return not is_secret and _VARIABLE.search(str(value)) is None

    def depth(self, place: Sequence[str | int]) -> int:
        """How many steps of a place lead to a value that is there."""
        value: Any = self.raw
        for taken, step in enumerate(place):
            try:
                value = value[step]
            except (KeyError, IndexError, TypeError):
                return taken
        return len(place)

    def _filled(self, value: Any, place: tuple[str | int, ...]) -> Any:
        if isinstance(value, Mapping):
            return {k: self._filled(v, (*place, k)) for k, v in value.items()}
        if isinstance(value, list):
            return [self._filled(v, (*place, i)) for i, v in enumerate(value)]
        if not isinstance(value, str):
            return value

        def replace(match: re.Match[str]) -> str:
            found = os.environ.get(match[1], match[2])
            if found is None:
                raise ConfigError(f"{self.where(place)}: environment variable {match[1]} is not set")
            if match[1] in os.environ:
                remember(match[1], found)
            return found

        filled = _VARIABLE.sub(replace, value)
        remember_passwords(filled)
        return filled

    def _check_keys(self, node: yaml.Node) -> None:
        if isinstance(node, yaml.SequenceNode):
            for child in node.value:
                self._check_keys(child)
        if isinstance(node, yaml.MappingNode):
            seen: set[str] = set()
            for key, value in node.value:
                where = f"{self.path}:{key.start_mark.line + 1}"
                if key.tag not in _TEXT_KEYS:
                    kind = key.tag.rpartition(":")[2]
                    raise ConfigError(f"{where}: YAML reads {key.value} as {kind}; as a key write it in quotes")
                if key.value in seen:
                    raise ConfigError(f"{where}: {key.value!r} is given twice")
                seen.add(key.value)
                self._check_keys(value)


class _Loader(yaml.SafeLoader):
    """YAML's own, which tells the line of a day that there is not."""

    def construct_yaml_timestamp(self, node: yaml.ScalarNode) -> Any:
        try:
            return super().construct_yaml_timestamp(node)
        except ValueError as error:
            what = f"{node.value} is no date: {error}"
            raise yaml.constructor.ConstructorError(None, None, what, node.start_mark) from error


_Loader.add_constructor("tag:yaml.org,2002:timestamp", _Loader.construct_yaml_timestamp)


def _check_shape(text: str, path: str | Path) -> None:
    """Refuse a text that takes very long to build, before anything is built of it."""
    if len(text) > MAX_CHARACTERS:
        raise ConfigError(f"{path}: a config of {len(text)} characters; more than {MAX_CHARACTERS} are refused")
    count = _Counting()
    for event in yaml.parse(text, Loader=_Loader):
        fault = count.fault_with(event)
        if fault is not None:
            line = 0 if event.start_mark is None else event.start_mark.line
            raise ConfigError(f"{path}:{line + 1}: {fault}")


class _Counting:
    """Values of a text so far, those behind aliases counted each time."""

    def __init__(self) -> None:
        self._behind: dict[str, int] = {}
        self._open: list[tuple[str | None, int]] = []
        self._total = 0

    def fault_with(self, event: yaml.Event) -> str | None:
        """What is wrong with a text that goes on with this event, if anything is."""
        anchor: str | None = getattr(event, "anchor", None)
        if isinstance(event, yaml.AliasEvent) and any(name == anchor for name, _ in self._open):
            return f"*{anchor} stands within what it stands for"
        if isinstance(event, yaml.CollectionEndEvent):
            name, before = self._open.pop()
            if name is not None:
                self._behind[name] = self._total - before
        elif isinstance(event, yaml.NodeEvent):
            is_alias = isinstance(event, yaml.AliasEvent)
            if isinstance(event, yaml.CollectionStartEvent):
                self._open.append((anchor, self._total))
            elif anchor is not None and not is_alias:
                self._behind[anchor] = 1
            self._total += self._behind.get(anchor or "", 1) if is_alias else 1
        if len(self._open) > MAX_DEPTH:
            return f"nested deeper than {MAX_DEPTH} levels"
        if self._total > MAX_VALUES:
            return f"more than {MAX_VALUES} values, those behind aliases counted each time"
        return None


def _not_yaml(error: yaml.YAMLError, path: str | Path) -> str:
    """The message with the line where others have theirs."""
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return f"{path}: not YAML: {' '.join(str(error).split())}"
    what = error.problem or error.context or "it ends too early"
    if "'\\t'" in what:
        what = "a tab where spaces must stand"
    elif error.context is not None and error.context != what:
        what = f"{error.context} {what}"
    return f"{path}:{error.problem_mark.line + 1}: not YAML: {what}"
