"""Pairs of functions with different results, as texts of modules.

`<>` stands for the difference. Each module defines `fn`. Its fingerprint has to tell the two apart, or to refuse both
with a name. `FOLDER` is an empty folder.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ChangedModule:
    """Module in two versions, and the text of its refusal, if it is refused."""

    name: str
    text: str
    before: str
    after: str
    refused: str | None = None

    def __str__(self) -> str:
        return self.name


def _value(
    name: str, before: str, after: str, refused: str | None = None, *, use: str = "repr(VALUE)"
) -> ChangedModule:
    text = f"{IMPORTS}VALUE = <>\ndef fn(b):\n    return {use}\n"
    return ChangedModule(f"value: {name}", text, before, after, refused)


def _body(name: str, text: str, before: str, after: str, refused: str | None = None) -> ChangedModule:
    return ChangedModule(name, f"{IMPORTS}{text}", before, after, refused)


def _hidden(name: str, expression: str, refused: str, *, setup: str = "STATE = <>\n") -> ChangedModule:
    return ChangedModule(
        f"hidden: {name}", f"{IMPORTS}{setup}def fn(b):\n    return {expression}\n", "'1'", "'2'", refused
    )


IMPORTS = """
import abc, collections, contextvars, ctypes, dataclasses, datetime, decimal, enum, functools, importlib, inspect, io
import json, math, operator, os, pathlib, pickle, random, re, struct, sys, time, types, typing, uuid, zoneinfo
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
"""

CODE = [
    _body(
        "constant",
        """
def fn(b):
    return b * <>
""",
        "2.0",
        "3.0",
    ),
    _body(
        "global",
        """
SCALE = <>
def fn(b):
    return b * SCALE
""",
        "2.0",
        "3.0",
    ),
    _body(
        "helper",
        """
def helper(b):
    return b * <>
def fn(b):
    return helper(b)
""",
        "2.0",
        "3.0",
    ),
    _body(
        "default",
        """
def fn(b, k=<>):
    return b * k
""",
        "2.0",
        "3.0",
    ),
    _body(
        "keyword default",
        """
def fn(b, *, k=<>):
    return b * k
""",
        "2.0",
        "3.0",
    ),
    _body(
        "closure",
        """
def make(k):
    def fn(b):
        return b * k
    return fn
fn = make(<>)
""",
        "2.0",
        "3.0",
    ),
    _body(
        "nested function",
        """
def fn(b):
    def inner():
        return b * <>
    return inner()
""",
        "2.0",
        "3.0",
    ),
    _body(
        "lambda",
        """
fn = lambda b: b * <>
""",
        "2.0",
        "3.0",
    ),
    _body(
        "operator",
        """
def fn(b):
    return b <> 3.0
""",
        "+",
        "-",
    ),
    _body(
        "exception handler",
        """
def fn(b):
    try:
        raise <>
    except ValueError:
        return 1
    except KeyError:
        return 2
""",
        "ValueError()",
        "KeyError()",
    ),
    _body(
        "made by exec",
        """
exec('def fn(b): return b * <>')
""",
        "2.0",
        "3.0",
    ),
    _body(
        "decorator",
        """
def times(k):
    def wrap(f):
        @functools.wraps(f)
        def inner(b):
            return f(b) * k
        return inner
    return wrap
@times(<>)
def fn(b):
    return b
""",
        "2.0",
        "3.0",
    ),
    _body(
        "lru_cache",
        """
@functools.lru_cache
def helper(k):
    return k * <>
def fn(b):
    return helper(2.0)
""",
        "2.0",
        "3.0",
    ),
    _body(
        "partial",
        """
def f(b, k):
    return b * k
fn = functools.partial(f, k=<>)
""",
        "2.0",
        "3.0",
    ),
    _body(
        "nested partial",
        """
def f(b, j, k):
    return b * k
fn = functools.partial(functools.partial(f, k=<>), j=1)
""",
        "2.0",
        "3.0",
    ),
    _body(
        "partial in a partial's argument",
        """
def g(k):
    return k
def f(b, h):
    return b * h()
fn = functools.partial(f, h=functools.partial(g, <>))
""",
        "2.0",
        "3.0",
    ),
    _body(
        "attribute of a function",
        """
def fn(b):
    return b * fn.scale
fn.scale = <>
""",
        "2.0",
        "3.0",
    ),
    _body(
        "attribute of a partial",
        """
def f(b):
    return b * fn.scale
fn = functools.partial(f)
fn.scale = <>
""",
        "2.0",
        "3.0",
        "contains itself",
    ),
    _body(
        "wrapped by hand",
        """
def one(): return 1
def two(): return 2
def fn(b):
    return fn.__wrapped__()
fn.__wrapped__ = <>
""",
        "one",
        "two",
    ),
    _body(
        "class attribute",
        """
class A:
    k = <>
def fn(b):
    return b * A.k
""",
        "2.0",
        "3.0",
    ),
    _body(
        "method",
        """
class A:
    def go(self, b):
        return b * <>
def fn(b):
    return A().go(b)
""",
        "2.0",
        "3.0",
    ),
    _body(
        "static method",
        """
class A:
    @staticmethod
    def go(b):
        return b * <>
def fn(b):
    return A.go(b)
""",
        "2.0",
        "3.0",
    ),
    _body(
        "class method",
        """
class A:
    @classmethod
    def go(cls, b):
        return b * <>
fn = A.go
""",
        "2.0",
        "3.0",
    ),
    _body(
        "property",
        """
class A:
    @property
    def k(self):
        return <>
def fn(b):
    return b * A().k
""",
        "2.0",
        "3.0",
    ),
    _body(
        "own property subclass",
        """
class P(property):
    k = <>
    def __get__(self, *_):
        return P.k
class A:
    x = P()
def fn(b):
    return A().x
""",
        "2.0",
        "3.0",
        "'x' of",
    ),
    _body(
        "method made by exec",
        """
class A: pass
space = {}
exec('def go(self): return <>', space)
A.go = space['go']
def fn(b):
    return A().go()
""",
        "2.0",
        "3.0",
    ),
    _body(
        "method set later",
        """
class A:
    def go(self):
        return 1
def go(self):
    return <>
A.go = go
def fn(b):
    return A().go()
""",
        "2.0",
        "3.0",
    ),
    _body(
        "base",
        """
class A:
    k = 2.0
class B:
    k = 3.0
class C(<>):
    pass
def fn(b):
    return b * C.k
""",
        "A",
        "B",
    ),
    _body(
        "metaclass",
        """
class M(type):
    def __getattr__(cls, name):
        return <>
class A(metaclass=M):
    pass
def fn(b):
    return b * A.k
""",
        "2.0",
        "3.0",
    ),
    _body(
        "dunder data of a class",
        """
class A:
    __scale__ = <>
def fn(b):
    return b * A.__scale__
""",
        "2.0",
        "3.0",
    ),
    _body(
        "doc of a class",
        """
class A:
    '<>'
def fn(b):
    return A.__doc__
""",
        "2.0",
        "3.0",
    ),
    _body(
        "doc of a function",
        """
def fn(b):
    '<>'
    return fn.__doc__
""",
        "2.0",
        "3.0",
    ),
    _body(
        "annotations",
        """
def fn(b: '<>'):
    return fn.__annotations__
""",
        "x",
        "y",
        "__annotations__",
    ),
    _body(
        "name of a class",
        """
class <>:
    pass
A = <>
def fn(b):
    return type(A()).__name__
""",
        "Left",
        "Right",
    ),
    _body(
        "dataclass field",
        """
@dataclasses.dataclass
class A:
    k: float
a = A(<>)
def fn(b):
    return b * a.k
""",
        "2.0",
        "3.0",
    ),
    _body(
        "dataclass default in a slot",
        """
@dataclasses.dataclass(slots=True)
class A:
    k: float = <>
def fn(b):
    return b * A().k
""",
        "2.0",
        "3.0",
    ),
    _body(
        "dataclass default factory",
        """
@dataclasses.dataclass
class A:
    k: list = dataclasses.field(default_factory=lambda: [<>])
def fn(b):
    return A().k
""",
        "2.0",
        "3.0",
    ),
    _body(
        "dataclass order of fields",
        """
@dataclasses.dataclass
class A:
    <>
def fn(b):
    return vars_of(A(1, 2))
def vars_of(a):
    return a.x, a.y
""",
        "x: int; y: int",
        "y: int; x: int",
    ),
    _body(
        "dataclass equality",
        """
@dataclasses.dataclass(eq=<>)
class A:
    x: int = 1
def fn(b):
    return A() == A()
""",
        "True",
        "False",
    ),
    _body(
        "dataclass as the function",
        """
@dataclasses.dataclass(frozen=True)
class A:
    k: float
    def __call__(self, b):
        return b * self.k
fn = A(<>)
""",
        "2.0",
        "3.0",
    ),
    _body(
        "bound method of a dataclass",
        """
@dataclasses.dataclass(frozen=True)
class A:
    k: float
    def go(self, b):
        return b * self.k
fn = A(<>).go
""",
        "2.0",
        "3.0",
    ),
    _body(
        "dataclass attribute that is no field",
        """
@dataclasses.dataclass
class A:
    k: float = 1.0
a = A()
a.extra = <>
def fn(b):
    return b * a.extra
""",
        "2.0",
        "3.0",
    ),
    _body(
        "slot of a dataclass's base",
        """
class Base:
    __slots__ = ('extra',)
@dataclasses.dataclass(slots=True)
class A(Base):
    k: float = 1.0
a = A()
a.extra = <>
def fn(b):
    return b * a.extra
""",
        "2.0",
        "3.0",
    ),
    _body(
        "dataclass that is a dict",
        """
@dataclasses.dataclass
class A(dict):
    k: float = 1.0
a = A()
a['x'] = <>
def fn(b):
    return b * a['x']
""",
        "2.0",
        "3.0",
        "builtins.dict",
    ),
    _body(
        "dataclass that is a list",
        """
@dataclasses.dataclass
class A(list):
    k: float = 1.0
a = A()
a.append(<>)
def fn(b):
    return b * a[0]
""",
        "2.0",
        "3.0",
        "builtins.list",
    ),
    _body(
        "equal dataclasses of two classes",
        """
@dataclasses.dataclass(frozen=True)
class A:
    k: float
    def go(self): return 1
@dataclasses.dataclass(frozen=True)
class B:
    k: float
    def go(self): return 2
a = <>(1.0)
def fn(b):
    return a.go()
""",
        "A",
        "B",
    ),
    _body(
        "own module",
        """
own = types.ModuleType('own_settings')
own.limit = <>
sys.modules['own_settings'] = own
def fn(b):
    return b * own.limit
""",
        "2.0",
        "3.0",
    ),
    _body(
        "function of a package",
        """
from numpy import <> as go
def fn(b):
    return go(b + 2)
""",
        "log",
        "log2",
    ),
    _body(
        "own function in a package",
        """
def own(b):
    return <>
np.own_function = own
def fn(b):
    return np.own_function(b)
""",
        "2.0",
        "3.0",
    ),
    _body(
        "own function over one of a package",
        """
def log(b):
    return <>
log.__module__ = 'numpy'
np.log10 = log
def fn(b):
    return np.log10(b)
""",
        "2.0",
        "3.0",
    ),
    _body(
        "own number in a package",
        """
np.own_scale = <>
def fn(b):
    return b * np.own_scale
""",
        "2.0",
        "3.0",
    ),
    _body(
        "own array in a package",
        """
np.own_table = np.array([<>])
def fn(b):
    return np.own_table[0]
""",
        "2.0",
        "3.0",
    ),
    _body(
        "own object in a package",
        """
class Own:
    k = 1.0
own = Own()
own.k = <>
np.own_object = own
def fn(b):
    return np.own_object.k
""",
        "2.0",
        "3.0",
        "np.own_object",
    ),
    _body(
        "own method of a package's class",
        """
def go(self):
    return <>
pd.Series.own_method = go
def fn(b):
    return pd.Series.own_method(None)
""",
        "2.0",
        "3.0",
    ),
    _body(
        "own method of a value's class",
        """
def go(self):
    return <>
pd.Series.own_way = go
def fn(b):
    return pd.Series(b).own_way()
""",
        "2.0",
        "3.0",
    ),
    _body(
        "accessor of pandas",
        """
@pd.api.extensions.register_series_accessor("own_reader")
class Own:
    def __init__(self, series): ...
    def go(self):
        return <>
def fn(b):
    return pd.Series(b).own_reader.go()
""",
        "2.0",
        "3.0",
    ),
    _body(
        "registered class",
        """
class A(abc.ABC): ...
A.register(<>)
def fn(b):
    return isinstance(1, A)
""",
        "int",
        "str",
    ),
    _body(
        "singledispatch",
        """
@functools.singledispatch
def go(b):
    return 0
go.register(np.ndarray, lambda b: <>)
def fn(b):
    return go(b)
""",
        "2.0",
        "3.0",
        "global variable 'go'",
    ),
    _body(
        "enum",
        """
class E(enum.Enum):
    X = <>
def fn(b):
    return E.X.value
""",
        "2.0",
        "3.0",
        "'E'",
    ),
    _body(
        "instance",
        """
class A:
    pass
a = A()
a.k = <>
def fn(b):
    return a.k
""",
        "2.0",
        "3.0",
        "global variable 'a'",
    ),
    _body(
        "names in a class body",
        """
Z = <>
def fn(b):
    class A:
        Z = Z
    return A.Z
""",
        "2.0",
        "3.0",
    ),
    _body(
        "time zone",
        """
os.environ['TZ'] = '<>'
time.tzset()
def fn(b):
    return datetime.datetime.fromtimestamp(0).hour
""",
        "UTC",
        "UTC+3",
    ),
    _body(
        "registered function of Arrow",
        """
def fn(b):
    return pc.call_function('<>', [pa.array([2.0])])
""",
        "ln",
        "log2",
        "pc.call_function",
    ),
]

VALUES = [
    _value("number", "1", "2"),
    _value("bool and int", "True", "1"),
    _value("int and float", "1", "1.0"),
    _value("bool in a list", "[True]", "[1]"),
    _value("key of a dict", "{1: 2}", "{True: 2}"),
    _value("float key of a dict", "{1: 2}", "{1.0: 2}"),
    _value("order of a dict", "{'a': 1, 'b': 2}", "{'b': 2, 'a': 1}"),
    _value("many words", "['w'] * 1000", "['w'] * 999 + ['v']"),
    _value("many keys", "dict.fromkeys(map(str, range(1000)), 1)", "dict.fromkeys(map(str, range(1000)), 2)"),
    _value("many bools", "[True] * 1000", "[1] * 1000"),
    _value("tuple and list", "(1,)", "[1]"),
    _value("set", "{1, 2}", "{1, 3}"),
    _value("frozen set", "{1}", "frozenset({1})"),
    _value("negative zero", "0.0", "-0.0"),
    _value(
        "NaN payload",
        "struct.unpack('>d', bytes.fromhex('7ff8000000000000'))[0]",
        "struct.unpack('>d', bytes.fromhex('7ff8000000000001'))[0]",
        use="struct.pack('>d', VALUE)",
    ),
    _value(
        "slice of arrays",
        "slice(np.arange(5000), None)",
        "slice(np.arange(5000) // 2 * 2, None)",
        use="VALUE.start.sum()",
    ),
    _value("range", "range(5)", "range(6)"),
    _value("surrogates", "'\\ud800' * 500", "'\\ud801' * 500", use="[ord(c) for c in VALUE]"),
    _value("digits beyond 4,300", "10 ** 5000", "10 ** 5000 + 1", use="VALUE % 1000"),
    _value("decimal", "decimal.Decimal('1.0')", "decimal.Decimal('1.00')"),
    _value("fold", "datetime.datetime(2020, 1, 1)", "datetime.datetime(2020, 1, 1, fold=1)"),
    _value(
        "zone",
        "datetime.datetime(2020, 1, 1, tzinfo=zoneinfo.ZoneInfo('UTC'))",
        "datetime.datetime(2020, 1, 1, tzinfo=zoneinfo.ZoneInfo('Asia/Tokyo'))",
    ),
    _value("flags of a pattern", "re.compile('a')", "re.compile('a', re.I)"),
    _value("dtype", "np.array([1], np.int32)", "np.array([1], np.int64)", use="VALUE.dtype.str"),
    _value("byte order", "np.array([1], '<i4')", "np.array([1], '>i4')", use="VALUE.tobytes()"),
    _value("shape", "np.zeros((2, 3))", "np.zeros((3, 2))", use="VALUE.shape"),
    _value("array without dimensions", "np.array(1)", "np.array([1])"),
    _value(
        "memory order",
        "np.arange(6).reshape(2, 3)",
        "np.asfortranarray(np.arange(6).reshape(2, 3))",
        use="VALUE.ravel('K').tolist()",
    ),
    _value(
        "NaN payload in an array",
        "np.array([0x7ff8000000000000], 'u8').view('f8')",
        "np.array([0x7ff8000000000001], 'u8').view('f8')",
        use="VALUE.tobytes()",
    ),
    _value("negative zero in an array", "np.array([0.0])", "np.array([-0.0])"),
    _value(
        "metadata of a dtype",
        "np.dtype('f8', metadata={'k': 1})",
        "np.dtype('f8', metadata={'k': 2})",
        "'VALUE'",
        use="VALUE.metadata['k']",
    ),
    _value(
        "metadata of an array",
        "np.zeros(1, np.dtype('f8', metadata={'k': 1}))",
        "np.zeros(1, np.dtype('f8', metadata={'k': 2}))",
        "'VALUE'",
        use="VALUE.dtype.metadata['k']",
    ),
    _value(
        "titles of fields",
        "np.zeros(1, [(('t', 'a'), 'i4')])",
        "np.zeros(1, [(('u', 'a'), 'i4')])",
        use="str(VALUE.dtype.fields)",
    ),
    _value("objects in an array", "np.array([[1], None], object)", "np.array([[2], None], object)", "'VALUE'"),
    _value("masked array", "np.ma.array([1, 2], mask=[0, 1])", "np.ma.array([1, 2], mask=[1, 0])", "'VALUE'"),
    _value("matrix", "np.matrix([1])", "np.matrix([2])", "'VALUE'"),
    _value(
        "own array class",
        "np.arange(3).view(type('Unit', (np.ndarray,), {'k': 1}))",
        "np.arange(3).view(type('Unit', (np.ndarray,), {'k': 2}))",
        "'VALUE'",
        use="VALUE.k",
    ),
    _value(
        "own dict class", "type('D', (dict,), {'k': 1})()", "type('D', (dict,), {'k': 2})()", "'VALUE'", use="VALUE.k"
    ),
    _value(
        "own list class", "type('D', (list,), {'k': 1})()", "type('D', (list,), {'k': 2})()", "'VALUE'", use="VALUE.k"
    ),
    _value("own str class", "type('D', (str,), {'k': 1})()", "type('D', (str,), {'k': 2})()", "'VALUE'", use="VALUE.k"),
    _value("ordered dict", "collections.OrderedDict(a=1)", "collections.OrderedDict(a=2)", "'VALUE'"),
    _value("named tuple", "collections.namedtuple('P', 'x')(1)", "collections.namedtuple('P', 'x')(2)"),
    _value(
        "fields of a named tuple",
        "collections.namedtuple('P', 'x y')(1, 1)",
        "collections.namedtuple('P', 'y x')(1, 1)",
    ),
    _value(
        "dictionary",
        "pa.DictionaryArray.from_arrays(pa.array([0]), pa.array(['a']))",
        "pa.DictionaryArray.from_arrays(pa.array([0]), pa.array(['b']))",
        use="VALUE.to_pylist()",
    ),
    _value(
        "nested dictionary",
        "pa.StructArray.from_arrays([pa.DictionaryArray.from_arrays(pa.array([0]), pa.array(['a']))], ['x'])",
        "pa.StructArray.from_arrays([pa.DictionaryArray.from_arrays(pa.array([0]), pa.array(['b']))], ['x'])",
        use="VALUE.to_pylist()",
    ),
    _value(
        "chunked dictionary",
        "pa.chunked_array([pa.array(['a']).dictionary_encode()])",
        "pa.chunked_array([pa.array(['b']).dictionary_encode()])",
        use="VALUE.to_pylist()",
    ),
    _value(
        "dictionary in a table",
        "pa.table({'x': pa.array(['a']).dictionary_encode()})",
        "pa.table({'x': pa.array(['b']).dictionary_encode()})",
        use="VALUE['x'].to_pylist()",
    ),
    _value("chunks", "pa.chunked_array([[1], [2]])", "pa.chunked_array([[1, 2]])", use="VALUE.num_chunks"),
    _value(
        "metadata of a schema",
        "pa.schema([('a', pa.int8())], metadata={'k': 'x' * 5000})",
        "pa.schema([('a', pa.int8())], metadata={'k': 'x' * 4999 + 'y'})",
        use="VALUE.metadata[b'k'][-1]",
    ),
    _value(
        "metadata of a field",
        "pa.field('a', pa.int8(), metadata={'k': '1'})",
        "pa.field('a', pa.int8(), metadata={'k': '2'})",
        use="VALUE.metadata",
    ),
    _value(
        "metadata of a nested field",
        "pa.struct([pa.field('a', pa.int8(), metadata={'k': '1'})])",
        "pa.struct([pa.field('a', pa.int8(), metadata={'k': '2'})])",
        use="VALUE.field(0).metadata",
    ),
    _value(
        "own extension type",
        "type('E', (pa.ExtensionType,), {'k': 1, '__arrow_ext_serialize__': lambda s: b''})(pa.int8(), 'e')",
        "type('E', (pa.ExtensionType,), {'k': 2, '__arrow_ext_serialize__': lambda s: b''})(pa.int8(), 'e')",
        "'VALUE'",
        use="VALUE.k",
    ),
    _value("pandas", "pd.Series([1])", "pd.Series([2])", "'VALUE'"),
]

FILE = "pathlib.Path(FOLDER + '/f').write_text(<>)\n"
HIDDEN = [
    _hidden("environment", "os.environ['FOREBAY_PAIR']", "os.environ", setup="os.environ['FOREBAY_PAIR'] = <>\n"),
    _hidden("getenv", "os.getenv('FOREBAY_PAIR')", "os.getenv", setup="os.environ['FOREBAY_PAIR'] = <>\n"),
    _hidden("arguments", "sys.argv[1:]", "sys.argv", setup="sys.argv[1:] = [<>]\n"),
    _hidden(
        "modules",
        "sys.modules['pair_other'].k",
        "sys.modules",
        setup="sys.modules['pair_other'] = types.SimpleNamespace(k=<>)\n",
    ),
    _hidden(
        "import by name",
        "importlib.import_module('pair_other').k",
        "importlib.import_module",
        setup="sys.modules['pair_other'] = types.SimpleNamespace(k=<>)\n",
    ),
    _hidden(
        "__import__",
        "__import__('pair_other').k",
        "__import__",
        setup="sys.modules['pair_other'] = types.SimpleNamespace(k=<>)\n",
    ),
    _hidden(
        "environment by an alias",
        "(lambda m: m.environ['FOREBAY_PAIR'])(os)",
        "'os' as a whole",
        setup="os.environ['FOREBAY_PAIR'] = <>\n",
    ),
    _hidden(
        "environment by getattr",
        "getattr(os, 'env' + 'iron')['FOREBAY_PAIR']",
        "'os' as a whole",
        setup="os.environ['FOREBAY_PAIR'] = <>\n",
    ),
    _hidden(
        "random numbers by an alias",
        "(lambda m: m.random.rand())(np)",
        "'random' of it",
        setup="np.random.seed(int(<>))\n",
    ),
    _hidden(
        "random numbers by getattr", "getattr(np, 'random').rand()", "'random' of it", setup="np.random.seed(int(<>))\n"
    ),
    _hidden("random numbers of NumPy", "np.random.rand()", "np.random.rand", setup="np.random.seed(int(<>))\n"),
    _hidden("random numbers of Python", "random.random()", "random.random", setup="random.seed(int(<>))\n"),
    _hidden("time", "time.time_ns()", "time.time_ns"),
    _hidden("now", "datetime.datetime.now().isoformat()", "datetime.datetime.now"),
    _hidden("now of pandas", "pd.Timestamp.now().isoformat()", "pd.Timestamp.now"),
    _hidden("now as a text", "str(pd.Timestamp('now'))", "pd.Timestamp"),
    _hidden("uuid", "uuid.uuid4().hex", "uuid.uuid4"),
    _hidden("open", "open(FOLDER + '/f').read()", "'open'", setup=FILE),
    _hidden("open of io", "io.open(FOLDER + '/f').read()", "io.open", setup=FILE),
    _hidden("open of os", "os.read(os.open(FOLDER + '/f', 0), 9)", "os.read", setup=FILE),
    _hidden("path", "pathlib.Path(FOLDER, 'f').read_text()", "pathlib.Path", setup=FILE),
    _hidden("text of NumPy", "np.loadtxt(FOLDER + '/f').item()", "np.loadtxt", setup=FILE),
    _hidden("binary of NumPy", "np.fromfile(FOLDER + '/f', 'u1').tolist()", "np.fromfile", setup=FILE),
    _hidden("map of NumPy", "np.memmap(FOLDER + '/f', 'u1').tolist()", "np.memmap", setup=FILE),
    _hidden(
        "file of NumPy", "np.load(FOLDER + '/f.npy').item()", "np.load", setup="np.save(FOLDER + '/f.npy', int(<>))\n"
    ),
    _hidden("file of pandas", "pd.read_csv(FOLDER + '/f', header=None).to_numpy().tolist()", "pd.read_csv", setup=FILE),
    _hidden(
        "file of Arrow",
        "pa.csv.read_csv(FOLDER + '/f').column_names",
        "pa.csv.read_csv",
        setup="pathlib.Path(FOLDER + '/f').write_text(<> + '\\n1\\n')\n",
    ),
    _hidden("stream of Arrow", "pa.OSFile(FOLDER + '/f').read()", "pa.OSFile", setup=FILE),
    _hidden(
        "Parquet",
        "pq.read_table(FOLDER + '/p')['x'].to_pylist()",
        "pq.read_table",
        setup="pq.write_table(pa.table({'x': [<>]}), FOLDER + '/p')\n",
    ),
    _hidden(
        "import in the function",
        "go()",
        "environ",
        setup="os.environ['FOREBAY_PAIR'] = <>\n"
        "def go():\n    from os import environ as e\n    return dict(e)['FOREBAY_PAIR']\n",
    ),
    _hidden("globals by name", "globals()['STATE']", "'globals'"),
    _hidden("globals of a function", "fn.__globals__['STATE']", "__globals__"),
    _hidden("eval", "eval('STATE')", "'eval'"),
    _hidden("frame", "inspect.currentframe().f_globals['STATE']", "inspect.currentframe"),
    _hidden(
        "unpickled code",
        "pickle.loads(DATA)",
        "pickle.loads",
        setup='DATA = b"c__main__\\nPAIR\\n."\nimport __main__\n__main__.PAIR = <>\n',
    ),
    _hidden("context variable", "VAR.get()", "'VAR'", setup="VAR = contextvars.ContextVar('VAR', default=<>)\n"),
    _hidden("hash", "hash('x' + salt)", "'hash'", setup="salt = <>\n"),
    _hidden("not defined yet", "STATE or LATER", "'LATER' is not defined yet"),
    _hidden(
        "call that counts",
        "CALLS.append(1) or (STATE, len(CALLS))",
        "'CALLS' is changed by it",
        setup="CALLS = []\nSTATE = <>\n",
    ),
    _hidden("call that keeps", "KEPT.setdefault(0, STATE)", "'KEPT' is changed by it", setup="KEPT = {}\nSTATE = <>\n"),
]

PAIRS = [*CODE, *VALUES, *HIDDEN]
