from __future__ import annotations

from types import FunctionType
from typing import Any

from forebay.data.transform.fingerprint.bytecode import Imported, Loaded, Reference, WrittenNames, references


def found(source: str, name: str = "fn") -> list[Reference]:
    scope: dict[str, Any] = {}
    exec(source, scope)
    fn = scope[name]
    assert isinstance(fn, FunctionType)
    return list(references(fn.__code__))


def test_globals_come_with_the_attributes_read_off_them() -> None:
    source = "def fn(x):\n    y = settings.deep.fill + x.other\n    return helper(settings, y)"
    assert found(source) == [
        Loaded("settings", ("deep", "fill"), closure=False),
        Loaded("helper", (), closure=False),
        Loaded("settings", (), closure=False),
    ]


def test_method_calls_are_attributes() -> None:
    assert found("def fn(x):\n    return pkg.sub.go(x)") == [Loaded("pkg", ("sub", "go"), closure=False)]


def test_nested_functions_lambdas_comprehensions_and_classes_are_searched() -> None:
    source = """
def fn(x):
    def inner(y=lambda: first):
        class Local:
            z = second
            def go(self):
                return [third(i) for i in x]
        return Local
    return inner
"""
    assert {reference.name for reference in found(source) if isinstance(reference, Loaded)} == {
        "first",
        "second",
        "third",
    }


def test_many_names_do_not_hide_attributes() -> None:
    # From the 256th name on, instructions carry an EXTENDED_ARG before them.
    reads = "\n".join(f"    pkg{i}.attribute{i}" for i in range(400))
    assert found(f"def fn():\n{reads}") == [Loaded(f"pkg{i}", (f"attribute{i}",), closure=False) for i in range(400)]


def test_closure_variables_are_told_from_locals_of_enclosing_functions() -> None:
    source = """
def outer():
    import settings_like as kept
    def fn(x):
        shadow = 1
        def inner():
            return kept.fill + shadow
        return inner
    return fn
"""
    scope: dict[str, Any] = {}
    exec(source.replace("import settings_like as kept", "kept = 1"), scope)
    assert references(scope["outer"]().__code__) == (Loaded("kept", ("fill",), closure=True),)


def test_a_name_shadowed_on_the_way_is_not_the_closure_variable() -> None:
    source = """
def outer():
    name = 1
    def fn():
        first = name
        def inner():
            name = 2
            return lambda: name.attribute
        return inner
    return fn
"""
    scope: dict[str, Any] = {}
    exec(source, scope)
    assert references(scope["outer"]().__code__) == (Loaded("name", (), closure=True),)


def test_imports_and_assignments_outside() -> None:
    source = """
def fn():
    global count
    import numpy as np
    from .near import thing
    count = np
    del count
"""
    assert found(source) == [
        Imported("numpy", relative=False),
        Imported("near", relative=True),
        Imported("numpy", relative=False, attributes=()),
        WrittenNames("count"),
    ]
