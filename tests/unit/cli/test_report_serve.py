"""`forebay report --serve` serves runs until it is interrupted.

It refuses what it cannot serve.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from tests.unit.cli.test_report import main_of
from tests.unit.sweep.made import record, trial
from tests.unit.training.run_report.made import write_run

from forebay.sweep.record.record import save_record


def test_a_run_is_served_until_ctrl_c(tmp_path: Path) -> None:
    path = write_run(tmp_path)
    command = [sys.executable, "-m", "forebay", "report", path, "--serve", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        try:
            url = process.stdout.readline().split()[0]
            page = urllib.request.urlopen(url, timeout=60).read().decode()
            process.send_signal(signal.SIGINT)
            code = process.wait(60)
        finally:
            process.kill()
        assert (code, process.stderr.read()) == (0, "") and "<h1>ctr</h1>" in page and "finished" in page
    assert not Path(path, "report.html").exists()


def test_what_cannot_be_served_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_run(tmp_path / "runs")
    save_record(record(trial("a")), str(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        main_of("report", path, "--serve", "--port", port, code=3)
    assert f"--port {port} cannot be used on 127.0.0.1" in " ".join(capsys.readouterr().err.split())
    main_of("report", path, "--serve", "--json", code=2)
    assert "Leave out --out and --json" in capsys.readouterr().err
    main_of("report", str(tmp_path), "--serve", code=3)
    assert "--serve shows runs" in capsys.readouterr().err
    main_of("report", str(tmp_path / "none"), "--serve", code=3)
    assert "not the folder of a run" in capsys.readouterr().err
