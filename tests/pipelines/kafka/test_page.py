"""The project of docs/kafka.md, with a real broker."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.kafka_broker import running_broker
from tests.support.page_blocks import page_blocks

PAGE = Path(__file__).parents[3] / "docs" / "kafka.md"


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_project_of_the_page_reaches_its_rows(tmp_path: Path) -> None:
    blocks = page_blocks(PAGE)
    files = {block.title: block.code for block in blocks if block.title}
    (commands,) = (block.code for block in blocks if "run-with-broker" in block.marks)
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "NO_COLOR": "1"}
    with running_broker() as broker:
        config = files["nevermore.yaml"].replace("localhost:9092", broker.address)
        (tmp_path / "nevermore.yaml").write_text(config)
        broker.create_topic("shop.products")
        for line in files["messages.jsonl"].splitlines():
            message = json.loads(line)
            value = None if message["value"] is None else json.dumps(message["value"]).encode()
            broker.produce("shop.products", [(json.dumps(message["key"]).encode(), value)])
        command = ["bash", "-euxo", "pipefail", "-c", commands]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
