"""A function that is no longer what it was when its fingerprint was made."""

from __future__ import annotations

import importlib
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import forebay as fb
from forebay.data.cache.builders.registered_datasets import pack, unpack
from forebay.errors import Unfingerprintable

HEAD = "import dataclasses, os, types\nimport numpy as np\n"
CHANGES = {
    "global": ("SCALE = 1.0\ndef fn(b):\n    return {'x': b['x'].to_numpy() * SCALE}", "SCALE = 2.0", "'SCALE'"),
    "helper": ("def go(x):\n    return x\ndef fn(b):\n    return {'x': go(b['x'].to_numpy())}", "go = np.log", "'go'"),
    "global of a helper": (
        "SCALE = 1.0\ndef go(x):\n    return x * SCALE\ndef fn(b):\n    return {'x': go(b['x'].to_numpy())}",
        "SCALE = 2.0",
        "'SCALE'",
    ),
    "dict": ("D = {'k': 1.0}\ndef fn(b):\n    return {'x': b['x'].to_numpy() * D['k']}", "D['k'] = 2.0", "'D'"),
    "list": ("L = [1.0]\ndef fn(b):\n    return {'x': b['x'].to_numpy() * L[0]}", "L[0] = 2.0", "'L'"),
    "array": ("A = np.ones(1)\ndef fn(b):\n    return {'x': b['x'].to_numpy() * A}", "A[0] = 2.0", "'A'"),
    "closure": (
        (
            "def make():\n    k = 1.0\n    def fn(b):\n        return {'x': b['x'].to_numpy() * k}\n    def put(v):\n"
            "        nonlocal k\n        k = v\n    return fn, put\nfn, put = make()"
        ),
        "put(2.0)",
        "'k'",
    ),
    "default": ("def fn(b, k=1.0):\n    return {'x': b['x'].to_numpy() * k}", "fn.__defaults__ = (2.0,)", "'k'"),
    "class": ("class A:\n    k = 1.0\ndef fn(b):\n    return {'x': b['x'].to_numpy() * A.k}", "A.k = 2.0", "'A'"),
    "dataclass": (
        (
            "@dataclasses.dataclass\nclass A:\n    k: float = 1.0\na = A()\ndef fn(b):\n"
            "    return {'x': b['x'].to_numpy() * a.k}"
        ),
        "a.k = 2.0",
        "'k'",
    ),
    "own module": (
        "own = types.ModuleType('own_settings')\nown.k = 1.0\ndef fn(b):\n    return {'x': b['x'].to_numpy() * own.k}",
        "own.k = 2.0",
        "'own.k'",
    ),
    "own attribute of a package": (
        "np.forebay_k = 1.0\ndef fn(b):\n    return {'x': b['x'].to_numpy() * np.forebay_k}",
        "np.forebay_k = 2.0",
        "'np.forebay_k'",
    ),
    "attribute of a package set later": (
        (
            "vars(np).pop('forebay_late', None)\n"
            "def fn(b):\n    return {'x': b['x'].to_numpy() * getattr_or(1.0)}\ndef getattr_or(d):\n"
            "    return np.forebay_late if hasattr(np, 'forebay_late') else d"
        ),
        "np.forebay_late = 2.0",
        "np",
    ),
    "code": (
        "def fn(b):\n    return {'x': b['x'].to_numpy()}\ndef g(b):\n    return 1",
        "fn.__code__ = g.__code__",
        "what it does",
    ),
    "defined later": ("def fn(b):\n    return {'x': b['x'].to_numpy() * K}", "K = 2.0", "'K'"),
}


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Any]]:
    def load(text: str) -> Any:
        made = types.ModuleType("changed_module")
        monkeypatch.setitem(sys.modules, "changed_module", made)
        exec(HEAD + text, made.__dict__)
        return made

    yield load
    for name in ("forebay_k", "forebay_late"):
        if hasattr(np, name):
            delattr(np, name)


@pytest.fixture
def plan(tmp_path: Path) -> Any:
    pq.write_table(pa.table({"x": np.ones(8)}), tmp_path / "a.parquet", row_group_size=4)
    return fb.build_plan(fb.scan(tmp_path), seed=1)


@pytest.mark.parametrize("name", CHANGES)
def test_what_is_set_after_a_transform_is_refused_before_the_first_block(
    name: str, module: Callable[[str], Any], plan: Any
) -> None:
    text, change, variable = CHANGES[name]
    made = module(text)
    for version in (None, "1"):
        exec(HEAD + text, made.__dict__)

        def is_told(version: str | None = version) -> None:
            transform = fb.Transform(fn=made.fn, version=version)
            exec(change, made.__dict__)
            fb.Data(plan=plan, transform=transform, global_batch=4)

        with pytest.raises(Unfingerprintable, match=variable) as caught:
            is_told()
        assert "Call fb.Transform after" in str(caught.value) or "define it first" in str(caught.value)


@pytest.mark.parametrize("name", ["global", "dict", "array", "closure", "own module"])
def test_no_stale_row_comes_from_a_cache(name: str, module: Callable[[str], Any], plan: Any, tmp_path: Path) -> None:
    text, change, _ = CHANGES[name]
    made = module(text)
    rows = []
    cache = fb.DiskCache(tmp_path / "cache", quota_bytes=1 << 24, min_free_bytes=0)

    def read(transform: fb.Transform) -> None:
        with fb.Loader(plan, transform, cache, global_batch=4, as_numpy=True) as loader:
            rows.append(np.concatenate([batch["x"].ravel() for batch in loader]))

    transform = fb.Transform(fn=made.fn)
    data = fb.Data(plan=plan, transform=transform, global_batch=4)
    read(transform)
    loader = fb.Loader(data, cache, as_numpy=True)
    exec(change, made.__dict__)
    for late in (lambda: next(iter(loader)), lambda: fb.Loader(data, cache), lambda: read(transform)):
        with pytest.raises(Unfingerprintable, match="has changed since"):
            late()
    read(fb.Transform(fn=made.fn))
    assert [set(found) for found in rows] == [{1.0}, {2.0}]


def test_a_changed_augment_is_refused(module: Callable[[str], Any], plan: Any) -> None:
    made = module("K = 1\ndef fn(batch, rng):\n    return batch if K else {}")
    augment = fb.Augment(made.fn)
    transform = fb.Transform(x=fb.Dense("x"))
    made.K = 2
    with pytest.raises(Unfingerprintable, match="'K' is another.*Call fb.Augment after"):
        fb.Data(plan=plan, transform=transform, global_batch=4, augment=augment)


def test_a_process_with_another_module_refuses_to_make_blocks(module: Callable[[str], Any], plan: Any) -> None:
    text, change, variable = CHANGES["own module"]
    made = module(text)
    dataset = fb.Dataset(plan.manifests[0], fb.Transform(fn=made.fn))
    payload = cloudpickle.dumps(dataset)  # `fn` by name, as that of a module which every process imports
    assert unpack(payload).fingerprint == dataset.fingerprint
    assert unpack(pack(dataset)).fingerprint == dataset.fingerprint
    exec(change, made.__dict__)
    with pytest.raises(Unfingerprintable, match=variable):
        unpack(payload)


BY_VALUE = """
import collections, dataclasses, functools, os, typing
import numpy as np
import pyarrow as pa

@dataclasses.dataclass(frozen=True, slots=True)
class A:
    k: float = 1.0
    m: dict = dataclasses.field(default_factory=dict)
    def go(self, b):
        return super().__repr__()

TABLE, WORDS = np.asfortranarray(np.ones((2, 3))), pa.array(["a", "b"]).dictionary_encode()
class N(typing.NamedTuple):
    x: int
    y: list = []
    def both(self):
        return self._asdict(), self._replace(x=1), N._make([1, 2])

class M(collections.namedtuple("M", "u v")):
    w = 3

a, n, m = A(2.0), N(3), M(1, N)

def make(k):
    @functools.wraps(np.log)
    def fn(b, *, j=3):
        import colorsys
        from wave import Wave_read
        colorsys.rgb_to_hsv(1, 1, 1)
        return a.go(b), n.both(), N(1).y, m.u, M, TABLE, WORDS, k, os.sep, {1, 2}, {"a", "b", "c"}
    return fn

fn = functools.partial(make([1, "a"]), j=4)
"""


def test_a_function_that_was_pickled_by_value_is_the_same_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plan: Any
) -> None:
    (tmp_path / "by_value_module.py").write_text(BY_VALUE)
    monkeypatch.syspath_prepend(str(tmp_path))
    made, _ = importlib.import_module("by_value_module"), importlib.import_module("colorsys")
    monkeypatch.delitem(sys.modules, "by_value_module", raising=False)
    sys.modules["by_value_module"] = made
    payloads = [pack(fb.Dataset(plan.manifests[0], fb.Transform(fn=made.fn, version=each))) for each in (None, "1")]
    code = (
        "import sys; from forebay.data.cache.builders.registered_datasets import unpack\n"
        "for payload in sys.argv[1:]: unpack(bytes.fromhex(payload))"
    )
    subprocess.run([sys.executable, "-c", code, *(payload.hex() for payload in payloads)], check=True)
    del sys.modules["by_value_module"]
