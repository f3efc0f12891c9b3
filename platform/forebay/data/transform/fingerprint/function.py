"""Identity of a user's function.

It comes from its source and its references, without a call.
"""

from __future__ import annotations

import builtins
import dataclasses
import functools
import inspect
import sys
import textwrap
from collections.abc import Callable, Mapping
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any

from forebay.data.transform.fingerprint.bytecode import Imported, Loaded, WrittenNames, references
from forebay.data.transform.fingerprint.values import Identity, NotPlain, digest, value_identity
from forebay.errors import InvalidOption, Unfingerprintable
from forebay.runtime.installed import package_of

# Their results depend on something outside of the function: a file, a text, keyboard input.
_BLIND = (open, input, eval, exec, compile, globals, locals, vars, __import__)
# Packages whose functions end up as methods of other people's classes.
_GENERATORS = ("dataclasses", "reprlib")


def function_identity(fn: Callable[..., Any], version: str | None) -> Identity:
    """Identity of `fn`, as JSON values.

    Two functions with equal identity compute the same. With `version`, the identity is the function's module, name and
    version: the user is responsible for it. It also has the settings (arguments of a `functools.partial`, closure
    values) that are plain data: one function in two settings is two functions.

    Without `version`, the identity covers the function's source and bytecode, defaults, closure values, and the globals
    it reads. Plain data counts by value, the user's own functions and classes recursively, installed packages by
    version. Raises `Unfingerprintable`, naming the variable, for everything else.

    Hidden state of a package cannot be seen, such as a random generator or a file that it reads. Such a function needs
    a version too.
    """
    if version is None:
        return _ReferenceWalk(function_name(fn)).identity(fn, "the function itself")
    if not isinstance(version, str) or not version:
        raise InvalidOption(
            f"version={version!r} is not a version. Give a non-empty string such as '1'.", version=version
        )
    named, settings = fn, []
    while isinstance(named, functools.partial):
        settings += [*named.args, *named.keywords.items()]
        named = named.func
    settings += [cell.cell_contents for cell in getattr(named, "__closure__", None) or ()]
    identity: dict[str, Identity] = {
        "function": f"{getattr(named, '__module__', None)}.{function_name(named)}",
        "version": version,
    }
    plain: list[Identity] = [found for value in settings if (found := _plain(value)) is not None]
    if plain:
        identity["settings"] = plain
    return identity


def _plain(value: object) -> Identity | None:
    """Identity of a setting, if it is plain data.

    Else None: then only the version covers it.
    """
    try:
        return value_identity(value)
    except NotPlain:
        return None


def function_name(fn: Callable[..., Any]) -> str:
    """Name of `fn` for messages."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    return str(getattr(fn, "__qualname__", type(fn).__qualname__))


class _ReferenceWalk:
    """Walk from a function through all of its references.

    Remembers visited objects, because of recursion.
    """

    def __init__(self, root: str) -> None:
        self._root = root
        # Keeps the objects themselves, because an id is valid only while its object lives.
        self._seen: dict[int, tuple[int, object]] = {}
        self._within: set[int] = set()

    def identity(self, value: Any, where: str) -> Identity:
        if isinstance(value, ModuleType):
            return self._package(value.__name__, where)
        if isinstance(value, FunctionType | type):
            # By object, because functions may call each other in circles. Data may not. It counts by its content only,
            # so it makes no difference whether two equal tuples are one object.
            if id(value) in self._seen:
                return {"again": self._seen[id(value)][0]}
            self._seen[id(value)] = (len(self._seen), value)
        if id(value) in self._within:
            raise self._refusal(where, "contains itself")
        self._within.add(id(value))
        try:
            return self._known(value, where)
        except NotPlain as error:
            raise self._refusal(where, f"is a {error}, whose content cannot be compared") from error
        finally:
            self._within.discard(id(value))

    def _known(self, value: Any, where: str) -> Identity:  # noqa: PLR0911 - one answer per kind of value
        if isinstance(value, functools.partial):
            parts = {"func": value.func, "args": value.args, "keywords": value.keywords}
            return {"partial": self._named(parts, where)}
        if isinstance(value, staticmethod | classmethod):
            return {type(value).__name__: self.identity(value.__func__, where)}
        if isinstance(value, functools.cached_property):
            return {"cached_property": self.identity(value.func, where)}
        if isinstance(value, property):
            parts = {"get": value.fget, "set": value.fset, "delete": value.fdel}
            return {"property": self._named(parts, where)}
        if isinstance(value, MethodType):
            return {"method": self._named({"function": value.__func__, "self": value.__self__}, where)}
        if isinstance(value, BuiltinFunctionType) and not isinstance(value.__self__, ModuleType | None):
            return {"method": value.__name__, "self": self.identity(value.__self__, f"what {where} is bound to")}
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            names = [field.name for field in dataclasses.fields(value)]
            state = {name: getattr(value, name) for name in names} | getattr(value, "__dict__", {})
            return {"class": self.identity(type(value), where), "fields": self._named(state, where)}
        if callable(value):
            return self._callable(value, where)
        return value_identity(value, lambda part: self.identity(part, f"a part of {where}"))

    def _callable(self, value: Any, where: str) -> Identity:
        released = _released_name(value)
        if released is not None:
            if any(value is blind for blind in _BLIND):
                raise self._refusal(where, "reaches what no source shows: files, or variables by name")
            return {"released": released, "package": self._package(released.partition(".")[0], where)}
        if isinstance(value, functools._lru_cache_wrapper):  # noqa: SLF001 - it has no public name
            return {"cached": self.identity(value.__wrapped__, where)}
        if isinstance(value, FunctionType):
            return {"source": self._source(value, where), **self._function(value, where)}
        if isinstance(value, type):
            return self._class(value, where)
        raise NotPlain(value)

    def _function(self, fn: FunctionType, where: str) -> dict[str, Identity]:
        attributes = {name: part for name, part in vars(fn).items() if name != "__wrapped__"}
        return {
            "code": self._code(fn.__code__, where),
            "defaults": self._named(_defaults(fn), f"the defaults of {where}"),
            "reads": self._reads(fn),
            "attributes": self._named(attributes, where),
        }

    def _code(self, code: CodeType, where: str) -> Identity:
        """Identity of the bytecode, besides the source.

        After an edit, a file shows a source that was not imported.
        """
        constants: list[Identity] = [
            self._code(part, where) if isinstance(part, CodeType) else value_identity(part) for part in code.co_consts
        ]
        names: list[Identity] = [*code.co_names, "", *code.co_varnames, "", *code.co_freevars]
        counts: list[Identity] = [code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags]
        return [digest(code.co_code + code.co_exceptiontable), constants, names, counts]

    def _reads(self, fn: FunctionType) -> Identity:
        cells: Mapping[str, CellType] = dict(zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True))
        closure = {name: cell.cell_contents for name, cell in cells.items() if _is_filled(cell)}
        variables = {**vars(builtins), **fn.__globals__}
        found: dict[str, Identity] = {}
        looked_at = references(fn.__code__)
        # A cell whose use was not recognised counts too, as a whole.
        seen = {reference.name for reference in looked_at if isinstance(reference, Loaded) and reference.closure}
        for reference in [*looked_at, *(Loaded(name, (), closure=True) for name in closure if name not in seen)]:
            match reference:
                case WrittenNames(name):
                    raise self._refusal(f"variable {name!r}", "is assigned by it, so that one call can change the next")
                case Imported(module, relative):
                    found[f"import {module}"] = self._import(module, relative)
                case Loaded(name, attributes, is_closure):
                    scope = closure if is_closure else variables
                    kind = "closure" if is_closure else "global"
                    value, path = _follow(scope.get(name), name, attributes)
                    # Looking at a function a second time would only give "again".
                    if name in scope and f"{kind} {path}" not in found:
                        found[f"{kind} {path}"] = self.identity(value, f"{kind} variable {path!r}")
        return found

    def _class(self, kind: type, where: str) -> Identity:
        members = {name: part for name, part in vars(kind).items() if _tells(name, part)}
        described: dict[str, Identity] = {}
        for name, part in sorted(members.items()):
            inner = f"{name!r} of {where}"
            # The source of the class contains the source of its methods.
            described[name] = (
                self._function(part, inner) if isinstance(part, FunctionType) else self.identity(part, inner)
            )
        bases: list[Identity] = [self.identity(base, f"a base of {where}") for base in kind.__bases__]
        return {"source": self._source(kind, where), "bases": bases, "members": described}

    def _source(self, value: FunctionType | type, where: str) -> str:
        try:
            return digest(textwrap.dedent(inspect.getsource(value)).encode())
        except (OSError, TypeError) as error:
            raise self._refusal(where, "has no source that can be read") from error

    def _import(self, module: str, relative: bool) -> Identity:
        if relative or package_of(module) is None:
            raise self._refusal(f"import of {module!r}", "is hidden inside a function; move it to the top of the file")
        return self._package(module, f"import of {module!r}")

    def _package(self, module: str, where: str) -> Identity:
        package = package_of(module)
        if package is None:
            raise self._refusal(where, f"is the module {module!r} as a whole, so any part of it may be used")
        if package.version is None:
            raise self._refusal(where, f"comes from the package {package.name!r}, which has no version")
        return {"package": package.name, "version": package.version}

    def _named(self, parts: Mapping[str, Any], where: str) -> dict[str, Identity]:
        return {name: self.identity(part, f"{name!r} of {where}") for name, part in sorted(parts.items())}

    def _refusal(self, where: str, why: str) -> Unfingerprintable:
        return Unfingerprintable(
            f"{self._root} cannot be fingerprinted by its source: {where} {why}. Give it a version, such as "
            'Transform(fn=..., version="1"), and raise that version whenever its result changes.',
            function=self._root,
            variable=where,
        )


def _defaults(fn: FunctionType) -> dict[str, Any]:
    names, values = fn.__code__.co_varnames[: fn.__code__.co_argcount], fn.__defaults__ or ()
    return dict(zip(names[len(names) - len(values) :], values, strict=True)) | (fn.__kwdefaults__ or {})


def _is_filled(cell: CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def _follow(value: Any, path: str, attributes: tuple[str, ...]) -> tuple[Any, str]:
    """Follow attributes to the object in use.

    Goes through the user's own modules, and stops at an installed package.
    """
    for attribute in attributes:
        if not isinstance(value, ModuleType) or package_of(value.__name__) is not None or not hasattr(value, attribute):
            break
        value, path = getattr(value, attribute), f"{path}.{attribute}"
    return value, path


def _released_name(value: Any) -> str | None:
    """Qualified name of an installed function or class.

    module.qualname, if that name leads to this very object.
    """
    module = getattr(value, "__module__", None) or ("numpy" if type(value).__module__ == "numpy" else None)
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    if not isinstance(module, str) or not isinstance(name, str) or package_of(module) is None:
        return None
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return f"{module}.{name}" if found is value else None


def _tells(name: str, part: Any) -> bool:
    """Whether a class attribute adds to the source.

    False for attributes that Python or `dataclass` added.
    """
    if isinstance(part, FunctionType):
        return part.__code__.co_filename != "<string>" and part.__globals__.get("__name__") not in _GENERATORS
    if isinstance(part, staticmethod | classmethod | property | functools.cached_property):
        return True
    is_slot = isinstance(part, MemberDescriptorType | GetSetDescriptorType)
    return not (name.startswith("__") or name == "_abc_impl" or is_slot)
