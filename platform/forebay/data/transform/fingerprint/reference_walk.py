"""Walk from a function through everything that it refers to.

Bytecode and values are looked at. Nothing is called.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import importlib
import operator
import os
import sys
import time
import typing
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodDescriptorType,
    MethodType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any

from forebay.data.transform.fingerprint.bytecode import (
    Imported,
    Loaded,
    Use,
    WrittenNames,
    class_body,
    names_of,
    references,
)
from forebay.data.transform.fingerprint.hidden_state import COMPUTED_NAMES, DOORS, has_hidden, hidden, hides_everything
from forebay.data.transform.fingerprint.values import Identity, NotPlain, canonical, digest, value_identity
from forebay.errors import Unfingerprintable
from forebay.runtime.installed import package_of
from forebay.runtime.late_import import plain

# Their results depend on something outside of the function: a file, a text, keyboard input, an address in memory.
_BLIND = (open, input, eval, exec, compile, globals, locals, vars, __import__, hash, id, breakpoint, help)
# Packages whose functions end up as methods of other people's classes.
_GENERATORS = ("dataclasses", "reprlib")
_GENERATED = frozenset(
    {
        *("__init__", "__repr__", "__eq__", "__lt__", "__le__", "__gt__", "__ge__", "__hash__", "__setattr__"),
        *("__delattr__", "__replace__", "__getstate__", "__setstate__", "_dataclass_getstate", "_dataclass_setstate"),
    }
)
"""Methods that `dataclass` writes."""
_BOOKKEEPING = frozenset(
    {
        *("__module__", "__dict__", "__weakref__", "__qualname__", "__firstlineno__", "__static_attributes__"),
        *("__abstractmethods__", "_abc_impl", "__annotations__", "__dataclass_fields__", "__dataclass_params__"),
        *("__orig_bases__", "__parameters__", "__protocol_attrs__", "__non_callable_proto_members__", "_is_protocol"),
        *("_is_runtime_protocol", "__annotate_func__", "__annotate__", "__annotations_cache__", "__getstate__"),
        *("__type_params__", "__slotnames__"),
    }
)
"""Attributes of a class that Python sets. Annotations and fields count by themselves."""
_STATELESS_BASES = ("builtins.object", "abc.ABC", "typing.Generic", "typing.Protocol")
# mypy knows the attribute in a fresh run, and not from its cache.
_BUILTINS_OF = operator.attrgetter("__builtins__")
_MUTABLE = (list, dict, set, bytearray)
_MUTATORS = frozenset(
    {
        *("append", "extend", "insert", "pop", "popitem", "remove", "clear", "add", "discard", "update", "setdefault"),
        *("sort", "reverse", "difference_update", "intersection_update", "symmetric_difference_update"),
    }
)
_ZONED = frozenset({"fromtimestamp", "astimezone", "timestamp"})
_LONGEST_IDENTITY = 400
_OPEN_CLASSES = {"pandas": ("DataFrame", "Series", "Index"), "polars": ("DataFrame", "Series"), "torch": ("Tensor",)}
"""Classes of values that a function makes, which users extend."""
_CONTAINERS = ("builtins", "collections", "types")
_HAS_DATA = ("__array__", "__dataframe__", "state_dict", "get_state")
_UNDEFINED = object()
_TUPLE_FIELD = type(vars(typing.NamedTuple("_Named", [("field", int)]))["field"])
STATE = "state that a version covers"
"""Key of the state of an own object that only a version covers. It may change between calls."""


class ReferenceWalk:
    """Walk from one function, used once.

    Remembers visited objects, because of recursion.
    """

    def __init__(self, root: str, *, is_versioned: bool, reads_inputs: bool) -> None:
        self._root = root
        self._is_versioned = is_versioned
        self._reads_inputs = reads_inputs
        # Keeps the objects themselves, because an id is valid only while its object lives.
        self._seen: dict[int, tuple[int, object]] = {}
        self._within: set[int] = set()
        self._whole: dict[str, tuple[object, str]] = {}
        self._attributes: set[str] = set()
        self._state: dict[str, Identity] = {}

    def whole(self, fn: Callable[..., Any]) -> Identity:
        """Identity of `fn`, with the state of packages that it uses."""
        try:
            identity = self.identity(fn, "the function itself")
        except RecursionError:
            return self._refuse("the function itself", "refers to data that is nested too deeply")
        for path, (owner, where) in self._whole.items():
            for name in sorted(self._attributes):
                if hasattr(owner, name) and self._is_hidden(f"{path}.{name}", Use()):
                    self._refuse(where, f"is handed around as a whole, and {name!r} of it may be used")
        if not self._state:
            return identity
        return {"function": identity, **self._state}

    def identity(self, value: Any, where: str) -> Identity:
        """Identity of any value. `where` names it in an error."""
        if isinstance(value, ModuleType):
            return self._module(value, where)
        value = plain(value)
        if isinstance(value, FunctionType | type) or _is_typing(value, "TypeAliasType"):
            # By object, because functions may call each other in circles, and aliases name each other. Data may not. It
            # counts by its content only, so it makes no difference whether two equal tuples are one object.
            if id(value) in self._seen:
                return {"again": self._seen[id(value)][0]}
            self._seen[id(value)] = (len(self._seen), value)
        if id(value) in self._within:
            return self._refuse(where, "contains itself")
        self._within.add(id(value))
        try:
            return self._known(value, where)
        except NotPlain as error:
            if self._is_versioned and _is_own(value):
                return self._versioned_instance(value)
            return self._refuse(where, f"is a {error}, whose content cannot be compared")
        finally:
            self._within.discard(id(value))

    def _known(self, value: Any, where: str) -> Identity:  # noqa: C901, PLR0911 - one answer per kind of value
        kind = type(value)
        if kind is functools.partial:
            parts = {"func": value.func, "args": value.args, "keywords": value.keywords, "attributes": vars(value)}
            return {"partial": self._named(parts, where)}
        if kind in (staticmethod, classmethod):
            return {kind.__name__: self.identity(value.__func__, where)}
        if kind is functools.cached_property:
            return {"cached_property": self.identity(value.func, where)}
        if kind is property:
            parts = {"get": value.fget, "set": value.fset, "delete": value.fdel}
            return {"property": self._named(parts, where)}
        if kind is MethodType:
            return {"method": self._named({"function": value.__func__, "self": value.__self__}, where)}
        if kind in (MethodDescriptorType, WrapperDescriptorType):
            return {"method": value.__name__, "of": self.identity(value.__objclass__, where)}
        if kind is functools._lru_cache_wrapper:  # noqa: SLF001 - it has no public name
            parts = {"options": value.cache_parameters(), "attributes": vars(value)}
            return {"cached": self._named(parts, where)}
        if kind is BuiltinFunctionType and not isinstance(value.__self__, ModuleType | None):
            return self._bound_builtin(value, where)
        if kind is _TUPLE_FIELD:
            return {"field of a named tuple": [*value.__reduce__()[1]]}
        if (dataclasses.is_dataclass(value) and not isinstance(value, type)) or _is_named_tuple(value):
            return self._instance(value, where)
        if (described := self._type(value, where)) is not None:
            return described
        if callable(value):
            return self._callable(value, where, Use())
        identity = value_identity(value, lambda part: self.identity(part, f"a part of {where}"))
        text = canonical(identity)
        is_short = len(text) <= _LONGEST_IDENTITY or STATE in text
        return identity if is_short else [kind.__name__, digest(text.encode())]

    def _type(self, value: Any, where: str) -> Identity | None:
        """Identity of a type that is no class: `list[int]`, a `NewType`, an alias or a type parameter.

        None for any other value.
        """
        if _is_typing(value, "TypeVar", "ParamSpec", "TypeVarTuple"):
            return {"type parameter": value.__name__}
        if _is_typing(value, "TypeAliasType"):
            return {"alias": self.identity(value.__value__, where)}
        if _is_typing(value, "NewType"):
            return {"new type": self.identity(value.__supertype__, where)}
        origin = typing.get_origin(value)
        if origin is None or origin is value:
            return None
        parts: list[Identity] = [self.identity(part, f"a part of {where}") for part in typing.get_args(value)]
        return {"type": self.identity(origin, where), "parts": parts}

    def _bound_builtin(self, value: BuiltinFunctionType, where: str) -> Identity:
        owner: Any = value.__self__
        if isinstance(owner, type) and self._is_hidden(f"{_released_name(owner)}.{value.__name__}", Use()):
            return self._refuse(where, "depends on more than its arguments")
        return {"method": value.__name__, "self": self.identity(owner, f"what {where} is bound to")}

    def _instance(self, value: Any, where: str) -> Identity:
        """Identity of an object of a dataclass, or of a named tuple: its class and all its state."""
        kind, is_tuple = type(value), _is_named_tuple(value)
        for base in kind.__mro__:
            name = _released_name(base)
            is_plain = "__dataclass_fields__" in vars(base) or (is_tuple and (base is tuple or "_fields" in vars(base)))
            if name is not None and name not in _STATELESS_BASES and not is_plain:
                return self._refuse(where, f"is also a {name}, whose content cannot be compared")
        items = zip(kind._fields, tuple.__iter__(value), strict=True) if is_tuple else ()
        fields: dict[str, Identity] = {
            f"field {name!r}": self.identity(part, f"{name!r} of {where}")
            for name, part in [*items, *_attributes_of(value)]
        }
        return {"class": self.identity(kind, where), "fields": fields}

    def _versioned_instance(self, value: Any) -> Identity:
        """Identity of an own object that a version covers.

        Its plain attributes, and the code of its methods.
        """
        state: dict[str, Identity] = {}
        for name, part in _attributes_of(value):
            with suppress(NotPlain, RecursionError):
                state[name] = value_identity(part)
        methods = [part for base in type(value).__mro__ for part in vars(base).values() if type(part) is FunctionType]
        code: list[Identity] = [self._code(part.__code__) for part in methods if _is_own(part)]
        return {STATE: state, "class": type(value).__qualname__, "code": code}

    def _callable(self, value: Any, where: str, use: Use) -> Identity:  # noqa: PLR0911 - one answer per kind
        released = _released_name(value)
        if released is not None:
            if any(value is blind for blind in _BLIND):
                return self._refuse(where, "reaches what no source shows: files, addresses, or variables by name")
            if self._is_hidden(released, use):
                return self._refuse(where, f"depends on more than its arguments, as {released}")
            if isinstance(value, type) and has_hidden(released) and hidden(released, Use()) is None:
                self._whole.setdefault(released, (value, where))
            return {"released": released, "package": self._package(released.partition(".")[0], where)}
        if type(value) is FunctionType:
            if not _is_own(value) and not value.__closure__:
                return {"of": value.__qualname__, "package": self._package(value.__globals__["__name__"], where)}
            try:
                return self._function(value, where)
            except Unfingerprintable as error:
                if _is_own(value):
                    raise
                inner = error.facts["variable"]
                return self._refuse(where, f"was made by {value.__module__}, and its {inner} cannot be compared")
        if isinstance(value, type):
            return self._class(value, where)
        raise NotPlain(value)

    def _function(self, fn: FunctionType, where: str) -> dict[str, Identity]:
        names = names_of(fn.__code__)
        computed = COMPUTED_NAMES & (names.attributes | names.variables)
        attributes = names.attributes | (names.texts | computed if computed else frozenset())
        door = min(DOORS & attributes, default="")
        self._attributes |= attributes
        reads = self._reads(fn)
        if door and not (self._reads_inputs and door.startswith("read_")):
            self._refuse(where, f"uses {door!r}, which leads to files, or to variables by name")
        return {
            "name": fn.__qualname__,
            "code": self._code(fn.__code__),
            "defaults": {
                f"default {name!r}": self.identity(part, f"{name!r} of the defaults of {where}")
                for name, part in sorted(_defaults(fn).items())
            },
            "reads": reads,
            "added": self._added(names.attributes),
            "attributes": self._named(vars(fn), where),
        }

    def _code(self, code: CodeType) -> Identity:
        """Identity of bytecode.

        Not of the source: after an edit, a file shows one that was not imported, and other processes have none.
        """
        body = class_body(code)
        content: list[Identity] = (
            [digest(code.co_code + code.co_exceptiontable)] if body is None else [name for name, _ in body]
        )
        constants: list[Identity] = [
            self._code(part) if isinstance(part, CodeType) else value_identity(part)
            for part in (code.co_consts if body is None else [argument for _, argument in body])
        ]
        names: list[Identity] = [*code.co_names, "", *code.co_varnames, "", *code.co_freevars, "", *code.co_cellvars]
        counts: list[Identity] = [code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags]
        return digest(canonical([*content, constants, names, counts]).encode())

    def _reads(self, fn: FunctionType) -> Identity:
        cells: Mapping[str, CellType] = dict(zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True))
        closure = {name: _content(cell) for name, cell in cells.items()}
        variables = {**_BUILTINS_OF(fn), **fn.__globals__}
        found: dict[str, Identity] = {}
        looked_at = references(fn.__code__)
        # A cell whose use was not recognised counts too, as a whole.
        seen = {reference.name for reference in looked_at if isinstance(reference, Loaded) and reference.closure}
        changed = {each.name for each in looked_at if isinstance(each, Loaded) and each.use.changed}
        for reference in [*looked_at, *(Loaded(name, (), closure=True) for name in closure if name not in seen)]:
            match reference:
                case WrittenNames(name):
                    found[f"the variable {name!r}"] = self._refuse(
                        f"variable {name!r}", "is assigned by it, so that one call can change the next"
                    )
                case Imported():
                    path, identity = self._import(reference)
                    found.setdefault(f"import {path}", identity)
                case Loaded(name, attributes, is_closure):
                    scope = closure if is_closure else variables
                    value = scope.get(name, _UNDEFINED)
                    if value is _UNDEFINED and reference.use.optional:
                        continue
                    kind = "closure" if is_closure else "global"
                    is_changed = name in changed or (_MUTATORS.intersection(attributes[:1]) and type(value) in _MUTABLE)
                    path = ".".join((name, *attributes)) if isinstance(value, ModuleType) else name
                    key = f"{kind} variable {path!r}"
                    if is_changed:
                        changed.add(name)
                        found[key] = self._refuse(key, "is changed by it, so that one call can change the next")
                    elif value is _UNDEFINED:
                        found[key] = self._refuse(key, "is not defined yet; define it first")
                    else:
                        identity = self._loaded(value, name, attributes, reference.use, kind)
                        # Looking at a function a second time only gives "again".
                        found.setdefault(key, identity)
        return found

    def _loaded(self, value: Any, name: str, attributes: tuple[str, ...], use: Use, kind: str) -> Identity:  # noqa: PLR0911
        """Identity of `name.attributes` in modules and classes of packages."""
        path, place, owner = name, 0, None
        while isinstance(value, ModuleType) and place < len(attributes):
            owner = value if package_of(value.__name__) is not None else None
            path = f"{path}.{attributes[place]}"
            where = f"{kind} variable {path!r}"
            if owner is not None and self._leads_to_hidden(owner.__name__, attributes[place:], use):
                full = ".".join((name, *attributes))
                return self._refuse(f"{kind} variable {full!r}", "depends on more than its arguments")
            value = getattr(value, attributes[place], _UNDEFINED)
            place += 1
            if value is _UNDEFINED:
                return "missing" if owner is not None else self._refuse(where, "is not defined yet; define it first")
        where, rest = f"{kind} variable {path!r}", attributes[place:]
        released = _released_name(value) if not isinstance(value, ModuleType) else None
        if released is not None:
            if self._leads_to_hidden(released, rest, use):
                full = ".".join((path, *rest))
                return self._refuse(f"{kind} variable {full!r}", "depends on more than its arguments")
            if rest and isinstance(value, type):
                return self._part_of_class(value, rest[0], released, where)
            return self._callable(value, where, use)
        if owner is not None and not isinstance(value, ModuleType):
            return self._part_of_package(owner, value, where)
        return self.identity(value, where)

    def _leads_to_hidden(self, path: str, attributes: tuple[str, ...], use: Use) -> bool:
        """Whether an attribute on the way, or the last one, has hidden state."""
        ways = [".".join((path, *attributes[:end])) for end in range(1, len(attributes) + 1)]
        if not ways or (self._is_hidden(ways[-1], Use()) and not self._is_hidden(ways[-1], use)):
            return False  # it has a seed, or reads from memory
        return any(self._is_hidden(way, Use()) for way in ways[:-1]) or self._is_hidden(ways[-1], use)

    def _is_hidden(self, path: str, use: Use) -> bool:
        found = hidden(path, use)
        return found is not None and not (self._reads_inputs and found == "files")

    def _part_of_class(self, kind: type, name: str, released: str, where: str) -> Identity:
        """Identity of `name` of a package's class, which may be the user's."""
        part = next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), None)
        identity: dict[str, Identity] = {
            "released": released,
            "package": self._package(released.partition(".")[0], where),
        }
        if _is_own(part):
            identity["own"] = self.identity(part, f"{name!r} of {where}")
        return identity

    def _part_of_package(self, owner: ModuleType, value: Any, where: str) -> Identity:
        """Identity of an installed module's attribute, which a user may have set."""
        package = self._package(owner.__name__, where)
        if _is_own(value):
            return {"package": package, "own": self.identity(value, where)}
        try:
            return {"package": package, "value": value_identity(value)}
        except NotPlain:
            pass
        if _is_set_by_user(owner, value):
            return {"package": package, "own": self.identity(value, where)}
        return {"package": package, "type": type(value).__qualname__, "name": _reduced(value)}

    def _added(self, names: frozenset[str]) -> dict[str, Identity]:
        """Identities of user methods on classes of packages, by name."""
        classes = [
            kind
            for module, kinds in _OPEN_CLASSES.items()
            for name in kinds
            if isinstance(kind := getattr(sys.modules.get(module), name, None), type)
        ]
        found: dict[str, Identity] = {}
        for kind in classes:
            for name in sorted(names & vars(kind).keys()):
                part = vars(kind)[name]
                for inner in ("_accessor", "_ns"):
                    part = vars(part).get(inner, part) if hasattr(part, "__dict__") else part
                if _is_own(part):
                    key = f"the attribute {kind.__name__}.{name}"
                    found[key] = self.identity(part, key)
        return found

    def _class(self, kind: type, where: str) -> Identity:
        fields = vars(kind).get("__dataclass_fields__", {})
        described: dict[str, Identity] = {}
        for name, part in sorted((name, plain(part)) for name, part in vars(kind).items()):
            if name in _BOOKKEEPING or type(part) in (MemberDescriptorType, GetSetDescriptorType):
                continue
            if name == "__doc__" and fields and str(part).startswith(f"{kind.__name__}("):
                continue  # written by `dataclass`, and may hold addresses
            inner = f"{name!r} of {where}"
            if type(part) is FunctionType and _is_generated(part, name if fields else ""):
                described[name] = self._code(part.__code__)
            else:
                is_method = type(part) is FunctionType and _is_own(part)
                described[name] = self._function(part, inner) if is_method else self.identity(part, inner)
        bases: list[Identity] = [self.identity(base, f"a base of {where}") for base in kind.__bases__]
        annotations = vars(kind).get("__annotations__", {})
        annotations = annotations if isinstance(annotations, dict) else {}
        identity: dict[str, Identity] = {
            "name": kind.__qualname__,
            "bases": bases,
            "members": described,
            "annotations": [[name, _annotation(annotations[name])] for name in annotations],
            "fields": [self._field(field, where) for field in fields.values()],
        }
        if type(kind) is not type:
            identity["metaclass"] = self.identity(type(kind), f"the metaclass of {where}")
        if isinstance(kind, abc.ABCMeta):
            registry, *_ = abc._get_dump(kind)  # type: ignore[attr-defined] # noqa: SLF001 - as cloudpickle does
            registered = [found for reference in registry if (found := reference()) is not None]
            registered.sort(key=lambda each: f"{each.__module__}.{each.__qualname__}")
            identity["registered"] = [self.identity(each, f"a class registered at {where}") for each in registered]
        return identity

    def _field(self, field: Any, where: str) -> Identity:
        flags: list[Identity] = [field.init, field.repr, field.hash, field.compare, bool(field.kw_only)]
        defaults = [
            self.identity(part, f"the default of {field.name!r} of {where}")
            for part in (field.default, field.default_factory, dict(field.metadata))
            if type(part) is not type(dataclasses.MISSING)  # a class that was pickled by value has another one
        ]
        return [field.name, flags, defaults]

    def _import(self, reference: Imported) -> tuple[str, Identity]:
        module, attributes = reference.module, reference.attributes
        where = f"import of {module!r}"
        if reference.relative or package_of(module) is None:
            return module, self._refuse(where, "is hidden inside a function; move it to the top of the file")
        if attributes is None:
            return module, self._package(module, where)
        path = ".".join((module, *attributes))
        if self._leads_to_hidden(module, attributes, reference.use):
            return path, self._refuse(f"import of {path!r}", "depends on more than its arguments")
        # Imported here, so that every process finds the same, whatever it has imported before.
        try:
            known = importlib.import_module(module)
        except ImportError:
            return path, "missing"
        return path, self._loaded(known, module, attributes, reference.use, "import")

    def _module(self, module: ModuleType, where: str) -> Identity:
        return self._whole_module(module.__name__, where)

    def _whole_module(self, module: str, where: str) -> Identity:
        if package_of(module) is not None:
            if hides_everything(module) and not (self._reads_inputs and hidden(f"{module}.any", Use()) == "files"):
                return self._refuse(where, f"is the module {module!r} as a whole; use its functions by name")
            if has_hidden(module):
                self._whole.setdefault(module, (sys.modules.get(module), where))
        return self._package(module, where)

    def _package(self, module: str, where: str) -> Identity:
        package = package_of(module)
        if package is None:
            return self._refuse(where, f"is the module {module!r} as a whole, so any part of it may be used")
        if package.version is None and package.content is None:
            return self._refuse(where, f"comes from the package {package.name!r}, which has no version")
        if package.name == "torch":
            torch = importlib.import_module("torch")
            self._state["the default dtype of torch"] = str(torch.get_default_dtype())
            self._state["the default device of torch"] = str(getattr(torch, "get_default_device", lambda: None)())
        if package.name == "python" and module.partition(".")[0] == "datetime" and self._attributes & _ZONED:
            zone = os.environ.get("TZ"), *time.tzname, time.timezone
            self._state["the time zone of this process"] = [str(part) for part in zone]
        return {"package": package.name, "version": package.version, "content": package.content}

    def _named(self, parts: Mapping[str, Any], where: str) -> dict[str, Identity]:
        return {name: self.identity(part, f"{name!r} of {where}") for name, part in sorted(parts.items())}

    def _refuse(self, where: str, why: str) -> Identity:
        """Raise `Unfingerprintable`, unless a version covers what cannot be seen."""
        if self._is_versioned:
            return "covered by the version"
        raise Unfingerprintable(
            f"{self._root} cannot be fingerprinted by its source: {where} {why}. Give it a version, such as "
            'Transform(fn=..., version="1"), and raise that version whenever its result changes.',
            function=self._root,
            variable=where,
        )


def _is_typing(value: Any, *names: str) -> bool:
    return type(value).__name__ in names and type(value).__module__ in ("typing", "typing_extensions")


def _is_named_tuple(value: Any) -> bool:
    return isinstance(value, tuple) and isinstance(getattr(type(value), "_fields", None), tuple)


def _defaults(fn: FunctionType) -> dict[str, Any]:
    names, values = fn.__code__.co_varnames[: fn.__code__.co_argcount], fn.__defaults__ or ()
    return dict(zip(names[len(names) - len(values) :], values, strict=True)) | (fn.__kwdefaults__ or {})


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _UNDEFINED


def _attributes_of(value: Any) -> list[tuple[str, Any]]:
    return sorted((dict(_slots(value)) | getattr(value, "__dict__", {})).items())


def _slots(value: Any) -> Iterator[tuple[str, Any]]:
    """Values of all slots, read without running user code."""
    for base in reversed(type(value).__mro__):
        for name, slot in vars(base).items():
            if type(slot) is MemberDescriptorType:
                try:
                    yield name, slot.__get__(value)
                except AttributeError:
                    continue


def _released_name(value: Any) -> str | None:
    """Qualified name of an installed function or class.

    module.qualname, if that name leads to this very object.
    """
    if value is print:  # Ray puts one of its own in its place, which leaves progress bars whole
        return "builtins.print"
    module = getattr(value, "__module__", None) or ("numpy" if type(value).__module__ == "numpy" else None)
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    if not isinstance(module, str) or not isinstance(name, str) or package_of(module) is None:
        return None
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return f"{module}.{name}" if found is value and not _is_own(value) else None


def _is_own(value: Any) -> bool:
    """Whether a function, class or object is the user's own."""
    while isinstance(value, staticmethod | classmethod | functools.partial):
        value = value.func if isinstance(value, functools.partial) else value.__func__
    if isinstance(value, property):
        return _is_own(value.fget)
    if isinstance(value, MethodType):
        return _is_own(value.__func__) or _is_own(value.__self__)
    if isinstance(value, FunctionType):
        module = value.__globals__.get("__name__", "")
    else:
        is_named = isinstance(value, type) or type(value).__module__.startswith("_cython_")
        module = value.__module__ if is_named else type(value).__module__
    return module == "" or (isinstance(module, str) and package_of(module) is None)


def _is_set_by_user(owner: ModuleType, value: Any) -> bool:
    """Whether an object seems made outside of the package `owner`."""
    kind = type(value)
    if kind is BuiltinFunctionType:
        return type(value.__self__) in _MUTABLE
    if kind.__name__ == "ufunc":
        return not str(value.__name__).isidentifier()  # by `np.frompyfunc`
    if isinstance(value, FunctionType | type | MethodType | MethodDescriptorType):
        return False
    if kind.__module__.startswith("_cython_") or kind.__module__ == "typing":
        return False
    is_foreign = package_of(kind.__module__) != package_of(owner.__name__) or kind.__module__ in _CONTAINERS
    return is_foreign or any(hasattr(value, name) for name in _HAS_DATA)


def _is_generated(part: FunctionType, name: str) -> bool:
    """Whether `dataclass` wrote the method `name`, or `typing` any."""
    module = part.__globals__.get("__name__")
    # Not by the file's name: a class that was pickled by value has another.
    by_dataclass = part.__code__.co_qualname.startswith("__create_fn__.") or module in _GENERATORS
    return module == "typing" or (name in _GENERATED and by_dataclass)


def _annotation(value: Any) -> str:
    """Text of an annotation, without addresses in memory."""
    if isinstance(value, str):
        return value
    text = value.__qualname__ if isinstance(value, type) else repr(value)
    return type(value).__qualname__ if " at 0x" in text else text


def _reduced(value: Any) -> str | None:
    """Pickled name of a package's constant, such as "float32" of torch."""
    try:
        reduced = value.__reduce__()
    except Exception:  # noqa: BLE001 - a foreign object may raise anything
        return None
    return reduced if isinstance(reduced, str) else None
