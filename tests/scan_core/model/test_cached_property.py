import ast
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

from nevermore import scan_core
from nevermore.scan_core.model.cached_property import cached_property

ROOT = Path(scan_core.__file__).resolve().parent.parent


class Value:
    def __init__(self, begun: Event, may_end: Event) -> None:
        self._begun, self._may_end = begun, may_end
        self.times = 0

    @cached_property
    def slow(self) -> int:
        self.times += 1
        self._begun.set()
        assert self._may_end.wait(60)
        return 7


def test_it_is_computed_once_and_belongs_to_the_class() -> None:
    done = Event()
    done.set()
    value = Value(done, done)
    assert (value.slow, value.slow, value.times) == (7, 7, 1)
    assert isinstance(Value.slow, cached_property)


def test_a_thread_does_not_wait_for_the_value_of_another_object() -> None:
    begun, may_end, done = Event(), Event(), Event()
    done.set()
    with ThreadPoolExecutor(2) as pool:
        slow = pool.submit(lambda: Value(begun, may_end).slow)
        try:
            assert begun.wait(60)
            assert pool.submit(lambda: Value(done, done).slow).result(60) == 7
        finally:
            may_end.set()
        assert slow.result(60) == 7


def test_no_module_uses_the_one_that_locks() -> None:
    using = [
        path.relative_to(ROOT).as_posix()
        for package in ("scan_core", "pipelines", "checks", "assets")
        for path in (ROOT / package).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module == "functools"
        if any(name.name == "cached_property" for name in node.names)
    ]
    assert using == ["scan_core/model/cached_property.py"]
