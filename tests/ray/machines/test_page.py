"""docs/deployment/machines.md, command by command, on two machines."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.ray.machines.machine import network, plug, problem
from tests.waiting import until

from forebay.testing.data.click_log import write_click_log
from forebay.training.runs.result import load_result

PAGE = Path(__file__).parents[3] / "docs/deployment/machines.md"
BLOCK = re.compile(r"```sh\n# on the (first|second) machine\n(.*?)```", re.DOTALL)
JOB = """
import socket
import time
from functools import partial

import torch
import forebay as fb


def train(steps, name, worker):
    model, optimizer = worker.setup(torch.nn.Linear(13, 1), lambda parameters: torch.optim.SGD(parameters, lr=0.01))
    for batch in worker.loader():
        loss = torch.nn.functional.binary_cross_entropy_with_logits(model(batch["x"]).squeeze(1), batch["y"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.2)
        with open(steps, "a") as file:
            print(name, socket.gethostname(), file=file)
        worker.commit(loss=loss.item())


def job(data: str, storage: str, name: str = "ctr", epochs: int = 2) -> fb.Job:
    plan = fb.build_plan(fb.scan(data), seed=0)
    transform = fb.Transform(x=fb.Dense([f"f{n}" for n in range(13)]), y=fb.Label("clicked", dtype="float32"))
    data = fb.Data(plan=plan, transform=transform, global_batch=512)
    elastic = fb.Elastic(min_workers=1, max_workers=2)
    run = partial(train, f"{storage}/../steps", name)
    return fb.Job(train=run, data=data, epochs=epochs, cache=None, elastic=elastic, checkpoint_every=5, name=name,
                  storage=storage)
"""
SUBMITTED = """
name = "submitted"
storage = "/share/runs"
[[task]]
run = "train.py"
args = {data = "/share/clicks", storage = "/share/runs", epochs = 1}
workers = {min = 1, max = 2}
"""


@pytest.mark.variation
@pytest.mark.timeout(900)
def test_every_command_of_the_page(tmp_path: Path) -> None:
    if why := problem():
        pytest.skip(f"no two machines here: {why}")
    shared = tmp_path / "share"
    write_click_log(str(shared / "clicks"), rows=20_000)
    jobs = shared / "jobs"
    jobs.mkdir()
    (jobs / "train.py").write_text(JOB)
    (jobs / "job.toml").write_text(SUBMITTED.replace("/share", str(shared)))
    blocks = BLOCK.findall(PAGE.read_text().replace("/share", str(shared)))
    assert [where for where, _ in blocks] == ["first", "first", "second", "first", "first", "second"]
    token, head, node, train, submit, leave = (text for _, text in blocks)
    with network(tmp_path / "machines") as (first, second):
        first.run(token)
        assert (second.home / ".ray/auth_token").read_bytes() == (first.home / ".ray/auth_token").read_bytes()
        first.run(one_cpu(head))
        second.run(one_cpu(node))
        first.run(train, within_s=300)
        assert {host for name, host in steps(shared) if name == "ctr"} == {"machine-1", "machine-2"}
        assert is_finished(shared, "ctr")
        assert "submitted" in first.run(submit)
        until(lambda: is_finished(shared, "submitted"), within_s=240.0)

        # A machine dies, and comes back.
        with first.begin(train.replace("name=ctr", "name=dies epochs=20")) as run:
            on_second = lambda: ("dies", "machine-2") in steps(shared)  # noqa: E731
            until(on_second, within_s=240.0)
            second.stop()
            (shared / "steps").unlink()
            until(lambda: ("dies", "machine-1") in steps(shared), within_s=240.0)
            second.start()
            plug(first, second)
            second.run(one_cpu(node))
            until(on_second, within_s=240.0)
            second.run(leave)
            first.run(f"forebay stop dies --storage {shared}/runs")
            assert run.wait(240) == 0, run.communicate()[0]


def one_cpu(line: str) -> str:
    """Give a node of Ray one CPU, so that two workers need two machines."""
    return line.replace("ray start", "ray start --num-cpus=1 --object-store-memory=100000000")


def steps(shared: Path) -> list[tuple[str, ...]]:
    """Name of the run and of the machine, for each step of a worker."""
    file = shared / "steps"
    return [tuple(line.split()) for line in file.read_text().splitlines()] if file.exists() else []


def is_finished(shared: Path, name: str) -> bool:
    found = load_result(str(shared / "runs" / name))
    return found is not None and found.is_finished
