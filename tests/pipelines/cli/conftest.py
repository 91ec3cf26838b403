from collections.abc import Callable

import pytest

from nevermore.pipelines.cli.main import main

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capfdbinary: pytest.CaptureFixture[bytes]) -> Run:
    """Runs the command in this process: (exit code, standard output, standard error)."""

    def call(*words: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in words])
        output, errors = capfdbinary.readouterr()
        return int(ended.value.code or 0), output.decode(), errors.decode()

    return call
