"""An error of a user's function shows the file and the line, once, wherever the function was called."""

from __future__ import annotations

import pickle
import sys
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import forebay as fb
from forebay.cli.app import main
from forebay.errors import ForebayError
from forebay.runtime.user_frames import traceback_of

MODULE = """
import numpy as np
import forebay as fb

def helper(rows):
    return rows["pric"]

def transform(batch):
    return {"x": helper({"price": batch["price"].to_numpy()})}

def fine(batch):
    return {"x": batch["price"].to_numpy()}

def rule(batch):
    return helper({}) > 0

def augment(batch, rng):
    return helper(batch)

def callback(event, control):
    helper({})

def train(worker):
    for batch in worker.loader():
        helper(batch)

def commits(worker):
    for batch in worker.loader():
        worker.commit()

class Monitor:
    def attach(self, setup):
        return self
    def step(self, step, metrics):
        helper(metrics)
    def state_dict(self):
        return {}

def made(data, what="", workers=1, **options):
    fn = transform if what == "transform" else fine
    rows = fb.Data(
        plan=fb.build_plan(fb.scan(data)), transform=fb.Transform(fn=fn, version="1"), global_batch=4,
        augment=fb.Augment(augment, version="1") if what == "augment" else None,
    )
    monitors = (Monitor(),) if what == "monitor" else ()
    loop = train if what == "train" else commits
    return fb.Job(train=loop, data=rows, cache=None, workers=workers, monitors=monitors, **options)

def job(data: str, what: str = "", storage: str = "runs") -> fb.Job:
    return made(data, what, storage=storage)
"""
LINE = MODULE.split("\n").index('    return rows["pric"]') + 1
KINDS = ("transform", "rule", "augment", "callback", "monitor", "train")


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Module of a user, with its data set in `data`."""
    (tmp_path / "users_code.py").write_text(MODULE)
    (tmp_path / "data").mkdir()
    pq.write_table(pa.table({"price": np.arange(20.0)}), tmp_path / "data" / "a.parquet", row_group_size=5)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    import users_code  # type: ignore[import-not-found]

    yield users_code
    del sys.modules["users_code"]


def in_loader(user: Any, what: str, cache: fb.DiskCache | None = None) -> None:
    with fb.Loader(user.made("data", what).data, cache) as loader:
        list(loader)


def kept(user: Any, what: str) -> None:
    fb.scan("data").keep(user.rule, version="1")


def trained(user: Any, what: str, workers: int = 1) -> None:
    job = user.made("data", what, workers, storage="runs")
    fb.run(job, driver="local", callbacks=[user.callback] if what == "callback" else [])


CASES: list[Any] = [
    *((what, in_loader) for what in ("transform", "augment")),
    (
        "transform",
        lambda user, what: in_loader(user, what, fb.DiskCache("cache", quota_bytes=1 << 24, min_free_bytes=0)),
    ),
    ("rule", kept),
    *((what, trained) for what in ("transform", "augment", "callback", "monitor", "train")),
    pytest.param("transform", partial(trained, workers=2), marks=pytest.mark.variation),
]


@pytest.mark.parametrize(("what", "run"), CASES)
def test_the_message_has_the_place_once_and_no_frame_before_the_users(
    user: Any, what: str, run: Callable[[Any, str], None]
) -> None:
    with pytest.raises(ForebayError) as raised:
        run(user, what)
    text = str(raised.value)
    assert f'users_code.py", line {LINE}, in helper\n    return rows["pric"]' in text
    assert text.count("in helper") == 1 and text.rstrip().endswith("KeyError: 'pric'")
    first = next(line for line in text.splitlines() if line.startswith("  File "))
    assert "users_code.py" in first
    assert "'pric'" in text.partition("\n")[0] and ".." not in text.partition("\n")[0]
    assert str(pickle.loads(pickle.dumps(raised.value))) == text
    assert raised.value.__cause__ is not None, "the chain is kept"
    assert "in helper" in "".join(traceback.format_exception(raised.value.__cause__))


@pytest.mark.parametrize("what", ["transform", pytest.param("train", marks=pytest.mark.variation)])
def test_the_command_prints_it_once(user: Any, what: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["run", "--driver", "local", "users_code.py", "data=data", f"what={what}"])
    assert ended.value.code == 1
    text = "".join(capsys.readouterr())
    assert text.count(f'users_code.py", line {LINE}, in helper') == 1
    assert text.count("KeyError: 'pric'") == 2, "in the sentence, and below the traceback"
    assert ".." not in text.replace("...", "")


def test_without_a_users_frame_all_are_shown() -> None:
    with pytest.raises(ForebayError) as raised:
        fb.Label(3)  # type: ignore[arg-type]
    assert "test_user_frames.py" in traceback_of(raised.value)
