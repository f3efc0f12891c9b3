"""Signature of a job function, read by `ast`."""

from __future__ import annotations

import ast
import builtins
import importlib
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from forebay.errors import BadJob
from forebay.training.job.recipe import (
    Parameter,
    job_file,
    load_recipe,
    no_function,
    parameters,
    require_name,
    type_of_default,
)

TYPES_FROM = ("collections", "datetime", "decimal", "forebay", "os", "pathlib", "typing", "typing_extensions", "uuid")
"""Packages whose types an annotation may name. Another type is not checked here: its import may take minutes, or fail
on a machine that only submits.
"""

_ALIAS: Any = getattr(ast, "TypeAlias", ())
"""Statement `type Sizes = list[int]` of Python 3.12 and later."""


def read_signature(path: str, functions: Sequence[str]) -> tuple[Parameter, ...]:
    """Return the parameters of a job function.

    It is the first of `functions` that the Python file at `path` defines. The module is run only if that function is
    imported, decorated or bound more than once. The function itself is never called. Raises `BadJob` for a missing
    file, a syntax error or no such function.
    """
    file = job_file(path)
    try:
        tree = ast.parse(file.read_bytes(), str(file))
    except (SyntaxError, ValueError) as error:
        line = f", line {error.lineno}," if isinstance(error, SyntaxError) and error.lineno else ""
        raise BadJob(f"{file}{line} does not load: {type(error).__name__}: {error}.", path=str(file)) from error
    bound = defaultdict[str, list[ast.AST]](list)
    for name, statement in _bound(tree):
        bound[name].append(statement)
    match next((bound[name] for name in functions if bound[name]), None):
        case [ast.FunctionDef(decorator_list=[]) as function] if not bound["*"]:
            return tuple(_parameters(function, bound))
        case None if not bound["*"]:
            raise no_function(path, functions)
        case _:
            if str(file.parent) not in sys.path:
                # As with `python job.py`: a job file may import files beside it.
                sys.path.insert(0, str(file.parent))
            return parameters(load_recipe(path, functions))


Bound = Mapping[str, Sequence[ast.AST]]
"""Statements that bind each global name of a file. `*` has the imports of all names of a module."""


def _bound(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Yield bound names, with their statements.

    Names within functions and classes are left out.
    """
    for each in ast.iter_child_nodes(node):
        match each:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name, each
            case _ if isinstance(each, _ALIAS):
                yield each.name.id, each
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                yield from ((alias.asname or alias.name.partition(".")[0], each) for alias in names)
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.Name(id=name, ctx=ast.Store()):
                yield name, each
            case _:
                yield from _bound(each)


class _Unknown(Exception):
    """An annotation that only a run can evaluate."""


def _parameters(function: ast.FunctionDef, bound: Bound) -> Iterator[Parameter]:
    arguments = function.args
    for sign, unnamed in (("", arguments.posonlyargs[:1]), ("*", [arguments.vararg]), ("**", [arguments.kwarg])):
        for each in unnamed:
            if each is not None:
                raise require_name(f"{sign}{each.arg}")
    without = [None] * (len(arguments.args) - len(arguments.defaults))
    named = zip(arguments.args, [*without, *arguments.defaults], strict=True)
    for argument, default in (*named, *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)):
        yield Parameter(
            name=argument.arg,
            annotation=_type_of(argument, default, bound),
            required=default is None,
            default=None if default is None else _Written(ast.unparse(default)),
        )


class _Written(str):
    """Expression as it is written, also within a message."""

    __slots__ = ()
    __repr__ = str.__str__


def _type_of(argument: ast.arg, default: ast.expr | None, bound: Bound) -> Any:
    try:
        if argument.annotation is not None:
            return _resolved(argument.annotation, bound)
        return str if default is None else type_of_default(ast.literal_eval(default))
    except (_Unknown, ImportError, AttributeError, TypeError, ValueError, SyntaxError, RecursionError):
        return Any


def _resolved(node: ast.expr, bound: Bound) -> Any:
    """Return the type of an annotation.

    Raises `_Unknown`, or what its parts raise.
    """
    found: Any
    match node:
        case ast.Constant(value=str() as text):
            found = _resolved(ast.parse(text, mode="eval").body, bound)
        case ast.Constant(value=value):
            found = value
        case ast.Name(id=name):
            found = _named(name, bound)
        case ast.Attribute(value=owner, attr=name):
            found = getattr(_resolved(owner, bound), name)
        case ast.Subscript(value=generic, slice=index):
            kind = _resolved(generic, bound)
            found = kind[ast.literal_eval(index) if kind is Literal else _resolved(index, bound)]
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            found = _resolved(left, bound) | _resolved(right, bound)
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            found = tuple(_resolved(part, bound) for part in parts)
        case _:
            raise _Unknown
    return found


def _named(name: str, bound: Bound) -> Any:
    match bound.get(name, []):
        case []:
            return getattr(builtins, name)
        case [ast.Assign(value=value)]:
            return _resolved(value, bound)
        case [ast.Import(names=names)]:
            alias = next(each for each in names if (each.asname or each.name.partition(".")[0]) == name)
            return _module(alias.name if alias.asname else name)
        case [ast.ImportFrom(module=str() as module, names=names, level=0)]:
            alias = next(each for each in names if (each.asname or each.name) == name)
            return getattr(_module(module), alias.name)
        case [alias] if isinstance(alias, _ALIAS) and not alias.type_params:
            return _resolved(alias.value, bound)
    raise _Unknown


def _module(name: str) -> Any:
    if name.partition(".")[0] not in TYPES_FROM:
        raise _Unknown
    return importlib.import_module(name)
