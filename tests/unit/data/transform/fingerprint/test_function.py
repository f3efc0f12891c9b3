"""A function's identity: stable while the function is the same, different if any of its dependencies differs."""

from __future__ import annotations

import builtins
import functools
import importlib.util
import itertools
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from forebay.data.transform.fingerprint.function import function_identity, validate_unchanged
from forebay.data.transform.fingerprint.values import canonical
from forebay.errors import InvalidOption, Unfingerprintable

Load = Callable[..., ModuleType]
Identify = Callable[..., str]

MODULE = """
import collections
import dataclasses
import functools
import re
from typing import NamedTuple
import numpy as np
import own_settings
from numpy import log1p

SCALE = {"a": [1.0, 2.0]}
TABLE = np.arange(3)
WORD = re.compile("[a-z]+")
UNUSED = 1

def outer_helper(x):
    return inner_helper(x) * 2

def inner_helper(x):
    return x + 1

@functools.lru_cache
def cached(x):
    return x * 5

class Base:
    shift = 7
    def move(self, x):
        return x + self.shift

class Scaler(Base):
    def __call__(self, x):
        return super().move(x) + outer_helper(x)

@dataclasses.dataclass(frozen=True, slots=True)
class Options:
    power: int = 2
    root: float = 0.5
    def apply(self, x):
        return x ** self.power

OPTIONS = Options(power=3)

class Bounds(NamedTuple):
    low: float = 0.25
    high: float = 0.75
    def width(self):
        return self.high - self.low

BOUNDS, Pair = Bounds(low=0.125), collections.namedtuple("Pair", "one two")
PAIR = Pair("x", 37)

def make(mean):
    def normalise(x):
        return x - mean
    return normalise

NORMALISE = make(11.0)

def recursive(n):
    return recursive(n - 1) if n else other(n)

def other(n):
    return recursive(n) if n else 13

def fn(batch, fill=17, *, width=19):
    local = [log1p(v) for v in SCALE["a"]]
    text = WORD.match("x")
    class Inner:
        table = TABLE
    def nested():
        return own_settings.limit, own_settings.helper(1)
    bounds, pair = [BOUNDS.width(), Bounds().high], [PAIR.one, Pair(1, 2).two, PAIR._asdict(), PAIR._replace(one=3)]
    return {"a": np.add(Scaler()(1), cached(2)), "b": OPTIONS.apply(2), "c": NORMALISE(1), "d": recursive(3)}
"""
SETTINGS = """
limit = 23
ignored = 29
def helper(x):
    return x * 31
"""
CHANGES = [
    ("return inner_helper(x) * 2", "return inner_helper(x) * 3"),
    ("return x + 1", "return x - 1"),
    ('{"a": [1.0, 2.0]}', '{"a": [1.0, 2.5]}'),
    ("np.arange(3)", "np.arange(4)"),
    ('re.compile("[a-z]+")', 're.compile("[a-z]+", re.I)'),
    ("x * 5", "x * 6"),
    ("shift = 7", "shift = 8"),
    ("x + self.shift", "x - self.shift"),
    ("super().move(x) +", "super().move(x) -"),
    ("power=3", "power=4"),
    ("root: float = 0.5", "root: float = 0.6"),
    ("x ** self.power", "x // self.power"),
    ("make(11.0)", "make(12.0)"),
    ("return x - mean", "return x + mean"),
    ("else 13", "else 14"),
    ("fill=17", "fill=18"),
    ("width=19", "width=20"),
    ("from numpy import log1p", "from numpy import log2 as log1p"),
    ('"d": recursive(3)', '"e": recursive(3)'),
    ("np.add(", "np.subtract("),
    ("low: float = 0.25", "low: float = 0.5"),
    ("low=0.125", "low=0.1"),
    ("self.high - self.low", "self.high + self.low"),
    ('"Pair", "one two"', '"Pair", "two one"'),
    ('Pair("x", 37)', 'Pair("x", 38)'),
]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """`load(source, name="own_transform") -> module` from its own file."""
    folders = (tmp_path / f"version{number}" for number in itertools.count())

    def load_source(source: str, name: str = "own_transform") -> ModuleType:
        folder = next(folders)
        folder.mkdir()
        path = folder / f"{name}.py"
        path.write_text(textwrap.dedent(source))
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        return module

    return load_source


@pytest.fixture
def identify(load: Load) -> Identify:
    """`identify(source, settings=SETTINGS) -> text`: the identity of `fn` in a module of that source."""

    def of_source(source: str, settings: str = SETTINGS) -> str:
        load(settings, "own_settings")
        return canonical(function_identity(load(source).fn, None))

    return of_source


def test_the_same_source_has_the_same_identity_in_another_file(identify: Identify) -> None:
    assert identify(MODULE) == identify(MODULE)


@pytest.mark.parametrize(("old", "new"), CHANGES, ids=[old for old, _ in CHANGES])
def test_whatever_the_function_depends_on_changes_it(identify: Identify, old: str, new: str) -> None:
    assert MODULE.count(old) == 1
    assert identify(MODULE) != identify(MODULE.replace(old, new))


@pytest.mark.parametrize(("old", "new"), [("limit = 23", "limit = 24"), ("x * 31", "x * 32")])
def test_own_modules_count_by_what_is_used_of_them(identify: Identify, old: str, new: str) -> None:
    assert identify(MODULE) != identify(MODULE, SETTINGS.replace(old, new))


def test_what_is_not_used_does_not_count(identify: Identify) -> None:
    assert identify(MODULE) == identify(MODULE.replace("UNUSED = 1", "UNUSED = 2"))
    assert identify(MODULE) == identify(MODULE, SETTINGS.replace("ignored = 29", "ignored = 30"))
    assert identify(MODULE) == identify(MODULE.replace("def make(mean):", "def never():\n    pass\n\ndef make(mean):"))


def test_the_line_of_an_inner_class_does_not_count(identify: Identify) -> None:
    """Python 3.13 has it among the constants of the class, which may share it with a value."""
    kept = "        table = TABLE\n        size = LINE\n        def grow(self):\n            self.a = self.b = 1\n"
    for line in (2, 300):
        source = MODULE.replace("        table = TABLE\n", kept.replace("LINE", str(line)))
        moved = [identify("\n" * lines + source) for lines in (0, 1, 2, 254, 298)]
        assert all(each == moved[0] for each in moved)
    assert identify(source) != identify(source.replace("size = 300", "size = 301"))


def test_calling_the_function_does_not_change_it(load: Load) -> None:
    module = load("def fn(x):\n    return sum(i * 2 for i in range(x))")
    before = function_identity(module.fn, None)
    for _ in range(5000):  # long enough for the interpreter to specialise its bytecode
        module.fn(3)
    assert function_identity(module.fn, None) == before


def test_a_file_edited_after_its_import_is_not_taken_for_the_new_version(load: Load) -> None:
    old = load("def fn(x):\n    return x + 1\n")
    new = load("def fn(x):\n    return x - 1\n", "own_second")
    assert old.__file__ is not None
    Path(old.__file__).write_text("def fn(x):\n    return x - 1\n")
    assert function_identity(old.fn, None) != function_identity(new.fn, None)


def test_every_process_finds_the_same_identity(tmp_path: Path) -> None:
    (tmp_path / "own_settings.py").write_text(SETTINGS)
    (tmp_path / "own_transform.py").write_text(MODULE + '\nSCALE["set"] = {"a", "b", "c", "d"}\n')
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); import own_transform\n"
        "from forebay.data.transform.fingerprint.function import function_identity\n"
        "from forebay.data.transform.fingerprint.values import canonical\n"
        "print(canonical(function_identity(own_transform.fn, None)))"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", program, str(tmp_path)],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(path for path in sys.path if path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")  # the second one reads the bytecode that the first one stored
    ]
    assert runs[0] == runs[1]
    assert len(runs[0]) > 1000


def test_lambdas_on_one_line_differ() -> None:
    first, second = (lambda batch: {"a": batch + 1}), (lambda batch: {"a": batch - 1})
    assert function_identity(first, None) != function_identity(second, None)


def test_closure_values_count(load: Load) -> None:
    module = load("def make(value):\n    def fn(batch):\n        return value\n    return fn")
    values: list[Any] = [1, 2, "1", (1,), [1], {"a": 1}, np.ones(2), np.zeros(2), None, 0.5, {1, 2}, np.float32, len]
    identities = {canonical(function_identity(module.make(value), None)) for value in values}
    assert len(identities) == len(values)
    assert function_identity(module.make([1, 2]), None) == function_identity(module.make([1, 2]), None)


def test_sharing_one_object_is_the_same_as_having_two_equal_ones(load: Load) -> None:
    module = load("def make(a, b):\n    def fn(batch):\n        return a, b\n    return fn")
    shared = [1, 2]
    assert function_identity(module.make(shared, shared), None) == function_identity(module.make([1, 2], [1, 2]), None)


def test_partials_count_with_their_arguments(load: Load) -> None:
    fn = load("def fn(batch, a, b=2):\n    return a, b").fn
    partials = [functools.partial(fn, a=1), functools.partial(fn, a=2), functools.partial(fn, 1), functools.partial(fn)]
    partials.append(functools.partial(partials[0], b=3))
    assert len({canonical(function_identity(partial, None)) for partial in partials}) == len(partials)
    assert function_identity(functools.partial(fn, a=1), None) == function_identity(partials[0], None)


def test_a_decorated_function_counts_with_its_decorator(load: Load) -> None:
    source = """
    import functools
    def scaled(factor):
        def decorate(fn):
            @functools.wraps(fn)
            def wrapper(batch):
                return fn(batch) * factor
            return wrapper
        return decorate
    @scaled(2)
    def fn(batch):
        return batch + 1
    """
    identities = [
        canonical(function_identity(load(changed).fn, None))
        for changed in (source, source.replace("@scaled(2)", "@scaled(3)"), source.replace("batch + 1", "batch + 2"))
    ]
    assert len(set(identities)) == 3


def test_objects_with_options_can_be_functions(load: Load) -> None:
    source = """
    import dataclasses
    @dataclasses.dataclass(frozen=True)
    class Normalise:
        mean: float
        def __call__(self, batch):
            return batch - self.mean
    """
    module, other = load(source), load(source.replace("batch - ", "batch + "))
    assert function_identity(module.Normalise(1.0), None) == function_identity(module.Normalise(1.0), None)
    assert function_identity(module.Normalise(1.0), None) != function_identity(module.Normalise(2.0), None)
    assert function_identity(module.Normalise(1.0), None) != function_identity(other.Normalise(1.0), None)


def test_functions_of_packages_count_by_name_and_version() -> None:
    assert function_identity(np.log, None) != function_identity(np.exp, None)
    assert np.__version__ in canonical(function_identity(np.log, None))


REFUSED = {
    r"global variable 'model' is a builtins\.object": "model = object()\ndef fn(b):\n    return model",
    "global variable 'rng'": "import numpy as np\nrng = np.random.default_rng(0)\ndef fn(b):\n    return rng.random(3)",
    "'draw'": "import numpy as np\ndraw = np.random.default_rng(0).random\ndef fn(b):\n    return draw(3)",
    "'lock'": "import threading\nlock = threading.Lock()\ndef fn(b):\n    with lock:\n        return b",
    "a part of global variable 'table'": "table = [1, object()]\ndef fn(b):\n    return table",
    "contains itself": "table = []\ntable.append(table)\ndef fn(b):\n    return table",
    "'open' reaches": "def fn(b):\n    return open('table.txt').read()",
    "'eval' reaches": "def fn(b):\n    return eval('b')",
    "'own_settings' as a whole": "import own_settings\ndef fn(b):\n    return getattr(own_settings, 'limit')",
    "'own_settings' is hidden": "def fn(b):\n    import own_settings\n    return own_settings.limit",
    "move it to the top": "def fn(b):\n    from own_settings import limit\n    return limit",
    "'count' is assigned": "count = 0\ndef fn(b):\n    global count\n    count += 1\n    return count",
    "'n' is assigned": """
        def make():
            n = 0
            def fn(b):
                nonlocal n
                n += 1
                return n
            return fn
        fn = make()
    """,
    "'below'": "def helper(x):\n    return below\nbelow = object()\ndef fn(b):\n    return helper(b)",
    "'inside'": """
        inside = object()
        class Net:
            def go(self):
                return inside
        def fn(b):
            return Net().go()
    """,
    r"'self' of the function itself is a own_transform\.Net": """
        class Net:
            state = object()
            def fn(self, b):
                return b
        fn = Net().fn
    """,
    "'later' is not defined yet": "def fn(b):\n    return later",
    "'own_settings.later' is not defined yet": "import own_settings\ndef fn(b):\n    return own_settings.later",
    r"the function itself is a own_transform\.Net": """
        class Net:
            def __call__(self, b):
                return b
        fn = Net()
    """,
    "'state' of the defaults": "def fn(b, state=object()):\n    return state",
    "'attribute' of": "def fn(b):\n    return fn.attribute\nfn.attribute = object()",
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_seen_is_refused_with_its_name_and_the_remedy(load: Load, message: str) -> None:
    load(SETTINGS, "own_settings")
    fn = load(REFUSED[message]).fn
    with pytest.raises(Unfingerprintable, match=message) as caught:
        function_identity(fn, None)
    assert 'version="1"' in str(caught.value)
    assert function_identity(fn, "1") == function_identity(fn, "1")


EVERYDAY = {
    "imports of packages": "def fn(b):\n    import json\n    from numpy import log\n    return json, log(b)",
    "builtins": "def fn(b):\n    return print(b), len(b), isinstance(b, int)",
    "no source": "exec('def fn(b): return b')",
    "submodules": "import os.path\ndef fn(b):\n    return os.path.join('a', 'b')",
    "a shadowed builtin": "def open(x):\n    return x\ndef fn(b):\n    return open(b)",
    "classes of packages": "import collections\ndef fn(b):\n    return collections.Counter(b)",
    "kinds of methods": """
        import functools
        class A:
            __slots__ = ("x", "__dict__")
            def __init__(self):
                self.x = 1
            @property
            def y(self):
                return 1
            @functools.cached_property
            def z(self):
                return 1
            @staticmethod
            def v():
                return 2
            @classmethod
            def w(cls):
                return cls()
        def fn(b):
            return A.w().y
    """,
    "a bound class method": "class A:\n    @classmethod\n    def fn(cls, b):\n        return cls\nfn = A.fn",
    "abstract classes": """
        import abc
        class A(abc.ABC):
            @abc.abstractmethod
            def go(self): ...
        class B(A):
            def go(self):
                return 1
        def fn(b):
            return B().go()
    """,
    "a class that names itself": """
        class Node:
            def again(self):
                return Node()
        def fn(b):
            return Node().again()
    """,
    "every kind of dataclass": """
        import dataclasses
        @dataclasses.dataclass
        class A:
            x: int = 1
            y: list = dataclasses.field(default_factory=list)
        @dataclasses.dataclass(frozen=True, slots=True, order=True)
        class B:
            x: int = 3
            def go(self): ...
        b = B
        def fn(batch):
            return A(), b(), a
        a = A(x=2)
    """,
    "types that are no classes": """
        from collections.abc import Callable
        from typing import Generic, Literal, NewType, ParamSpec, TypeVar, cast
        T, P = TypeVar("T"), ParamSpec("P")
        Sizes = dict[str, list[int]] | None
        Make, Word, Row = Callable[[int], T], Literal["a", 3], NewType("Row", int)
        class Box(Generic[T]):
            def get(self, x: T) -> T:
                return cast(T, x)
        def fn(b):
            return cast(Sizes, cast(Make, cast(Word, Row(Box().get(b)))))
    """,
}
GENERIC = """
        from dataclasses import dataclass
        from typing import cast
        type Sizes = list[int]
        type Tree[T] = list[T | Tree[T]]
        @dataclass(frozen=True)
        class Scale[T]:
            by: T
            def __call__[B: (int, float)](self, x: B) -> B:
                def same[I](y: I) -> I:
                    return y
                return same(x * self.by)
        class Twice[T, *Others, **Call](Scale[T]): ...
        scale = Scale(by=2)
        def fn[T](b: T) -> T:
            return cast(Sizes, cast(Tree[int], scale(b))), Twice
"""
if sys.version_info >= (3, 12):
    EVERYDAY["generics and aliases of Python 3.12"] = GENERIC


@pytest.mark.parametrize("kind", EVERYDAY)
def test_everyday_code_is_not_refused(load: Load, kind: str) -> None:
    source = EVERYDAY[kind]
    assert function_identity(load(source).fn, None) == function_identity(load(source).fn, None)


@pytest.mark.parametrize(
    ("old", "new"),
    [("[int]\n", "[float]\n"), ("by=2", "by=3"), ("return y", "return [y]"), ("| Tree", "| set")],
)
@pytest.mark.skipif(sys.version_info < (3, 12), reason="the syntax of Python 3.12")
def test_generics_and_aliases_count_by_what_is_in_them(identify: Identify, old: str, new: str) -> None:
    assert identify(GENERIC) != identify(GENERIC.replace(old, new))


def test_print_is_the_same_where_a_library_has_replaced_it(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray does in a process that shows its progress bars."""
    fn = load(EVERYDAY["builtins"]).fn
    before = function_identity(fn, None)
    safe_print = pytest.importorskip("ray.experimental.tqdm_ray").safe_print
    monkeypatch.setattr(builtins, "print", safe_print)
    assert function_identity(fn, None) == before


def test_a_version_stands_for_what_is_not_seen(load: Load) -> None:
    text = "import os\nstate = object()\ndef fn(b):\n    return open('a'), state, os.environ, later"
    first, again = load(text).fn, load(text).fn
    assert function_identity(first, "1") == function_identity(again, "1")
    assert function_identity(first, "1") != function_identity(first, "2")
    others = (text.replace("'a'", "'b'"), f"{text}, 1", text.replace("later", "len"))
    for other in others:
        assert function_identity(first, "1") != function_identity(load(other).fn, "1")
    assert function_identity(functools.partial(first, 1), "1") != function_identity(functools.partial(first, 2), "1")
    assert function_identity(functools.partial(first, open), "1") == function_identity(
        functools.partial(again, open), "1"
    )


def test_a_version_counts_the_settings_of_own_objects_and_lets_them_change(load: Load) -> None:
    text = """
    import functools
    class Net:
        def __init__(self, k):
            self.k, self.calls, self.lock = k, 0, object()
        def go(self, b):
            self.calls += 1
            return b * self.k
        def __call__(self, b):
            return self.go(b)
    def over(b, net):
        return net(b)
    """
    module = load(text)
    for make in (module.Net, lambda k: module.Net(k).go, lambda k: functools.partial(module.over, net=module.Net(k))):
        assert function_identity(make(1), "1") == function_identity(make(1), "1")
        assert function_identity(make(1), "1") != function_identity(make(2), "1")
        fn = make(1)
        before = function_identity(fn, "1")
        fn(3)
        validate_unchanged("fb.Transform", "fn", before, function_identity(fn, "1"))


def test_functions_of_one_name_and_version_in_two_scripts_differ(load: Load) -> None:
    found = [load(f"SCALE = {scale}\nfn = lambda b: (open('a'), SCALE)", "__main__").fn for scale in (2, 3)]
    assert function_identity(found[0], "1") != function_identity(found[1], "1")


@pytest.mark.parametrize("version", ["", 3])
def test_a_version_is_a_text(version: Any) -> None:
    with pytest.raises(InvalidOption, match="is not a version"):
        function_identity(len, version)
