"""The bench of HDFS measures every client.

It uses the servers of the tests.
"""

from __future__ import annotations

import subprocess
import sys

import pytest
from tests.storage.servers.hdfs import HdfsServers

pytestmark = pytest.mark.variation("two JVMs")


def test_each_client_has_its_row(hadoop: HdfsServers) -> None:
    uris = ["--hdfs", f"{hadoop.uri}/bench", "--webhdfs", f"webhdfs://127.0.0.1:{hadoop.http_port}/bench"]
    command = [sys.executable, "-m", "bench.storage.hdfs", *uris, "--megabytes", "1", "--rounds", "1"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    rows = [line.split("|")[1].strip() for line in done.stdout.splitlines()[2:]]
    assert rows == ["local disk", "hdfs-native", "WebHDFS"]
