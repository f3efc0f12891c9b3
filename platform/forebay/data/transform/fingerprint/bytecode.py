"""Globals, closure variables and imports of a function's bytecode."""

from __future__ import annotations

import dis
import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import CodeType

_GLOBAL = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
_CELL = ("LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF")
_ATTRIBUTE = ("LOAD_ATTR", "LOAD_METHOD")
_STORE = ("STORE_FAST", "STORE_DEREF", "STORE_NAME", "STORE_GLOBAL")
# Stack depth just before, counted from the container, at which an instruction changes the container: after a plain
# assignment, and after an augmented one, which swaps container and value first.
_CHANGES = {
    **dict.fromkeys(("STORE_SUBSCR", "DELETE_SUBSCR"), (2, 3)),
    **dict.fromkeys(("STORE_ATTR", "DELETE_ATTR"), (1, 2)),
    "STORE_SLICE": (3, 4),
}
_OF_SOURCE = ("__firstlineno__", "__static_attributes__")
"""Names that a class body of Python 3.13 and later sets: its line, and a set of its attributes in any order."""
_CLASS_BODY = frozenset({"__name__", "__module__", "__qualname__", "__annotations__"})


@dataclass(frozen=True, slots=True)
class Use:
    """Use of a variable, as far as bytecode shows it.

    Attributes:
        changed: It is written into, as in `table[key] = 1` and `fn.calls += 1`.
        optional: A class body reads it, and may have bound it itself.
        argument: First argument of a call that follows at once: names such as ("io", "BytesIO"), or (a constant,).
    """

    changed: bool = False
    optional: bool = False
    argument: tuple[object, ...] = ()


@dataclass(frozen=True, slots=True)
class Loaded:
    """Variable that is read, with its attributes.

    The attributes are those read from it directly. `settings.fill` is Loaded("settings", ("fill",)).
    """

    name: str
    attributes: tuple[str, ...]
    closure: bool
    use: Use = field(default=Use(), compare=False)


@dataclass(frozen=True, slots=True)
class Imported:
    """Import within a function, and the names used of it.

    Relative ones begin with a dot. `attributes` is None for the import itself, and () for the module as a whole.
    """

    module: str
    relative: bool
    attributes: tuple[str, ...] | None = None
    use: Use = field(default=Use(), compare=False)


@dataclass(frozen=True, slots=True)
class WrittenNames:
    """Global or closure variable that is assigned.

    So one call can change the next.
    """

    name: str


Reference = Loaded | Imported | WrittenNames


@dataclass(frozen=True, slots=True)
class _Step:
    """One instruction. Pairs of Python 3.13 are two."""

    operation: str
    argument: object
    effect: int


@functools.lru_cache(maxsize=4096)  # it takes 1 ms, and is asked again whenever a loader is made
def references(code: CodeType) -> tuple[Reference, ...]:
    """References of `code`, each once, in order.

    They include the references of functions, lambdas and classes defined in it.
    """
    # Equal references with other uses are kept: each may be one that is refused.
    found = {(each, getattr(each, "use", None)): each for each in _walk(code, frozenset(code.co_freevars), {})}
    return tuple(found.values())


@dataclass(frozen=True, slots=True)
class Names:
    """Attributes, variables and text constants of code and all code in it."""

    attributes: frozenset[str]
    variables: frozenset[str]
    texts: frozenset[str]


@functools.lru_cache(maxsize=4096)
def names_of(code: CodeType) -> Names:
    """Names of `code`."""
    steps, inner = _steps(code), [part for part in code.co_consts if isinstance(part, CodeType)]
    names = [names_of(part) for part in inner]
    attributes = {str(step.argument) for step in steps if step.operation in (*_ATTRIBUTE, "LOAD_SUPER_ATTR")}
    texts = {part for part in code.co_consts if isinstance(part, str)}
    return Names(
        attributes=frozenset(attributes).union(*(each.attributes for each in names)),
        variables=frozenset(code.co_names).union(*(each.variables for each in names)),
        texts=frozenset(texts).union(*(each.texts for each in names)),
    )


def class_body(code: CodeType) -> list[tuple[str, object]] | None:
    """Instructions and constants of a class body, without line numbers.

    None for other code, whose constants hold nothing of that kind.
    """
    if not set(_OF_SOURCE).intersection(code.co_names):
        return None
    found: list[tuple[str, object]] = []
    for each in dis.get_instructions(code):
        if each.opname == "STORE_NAME" and each.argval in _OF_SOURCE:
            found.pop()  # the constant
        elif each.opname != "EXTENDED_ARG":
            found.append((each.opname, each.argval if each.opcode in dis.hasconst else each.arg))
    return found


def _walk(code: CodeType, closure: frozenset[str], imports: Mapping[str, Imported]) -> Iterator[Reference]:
    steps = _steps(code)
    own = {str(step.argument) for step in steps if step.operation == "STORE_NAME"}
    imported = dict(imports) | _imports(steps)
    for position, step in enumerate(steps):
        name, operation = str(step.argument), step.operation
        if operation == "LOAD_NAME" and name in _CLASS_BODY:
            continue  # every class body begins by reading its module's name
        is_cell = operation in _CELL
        if operation == "IMPORT_NAME":
            yield Imported(name, relative=bool(steps[position - 2].argument))
        elif name in imported and (is_cell or operation in _GLOBAL or operation.startswith("LOAD_FAST")):
            attributes, use = _attributes(steps, position)
            origin = imported[name]
            yield replace(origin, attributes=(*(origin.attributes or ()), *attributes), use=use)
        elif operation in _GLOBAL or (is_cell and name in closure):
            attributes, use = _attributes(steps, position)
            yield Loaded(name, attributes, closure=is_cell, use=replace(use, optional=name in own))
        elif operation in ("STORE_GLOBAL", "DELETE_GLOBAL") or (
            operation in ("STORE_DEREF", "DELETE_DEREF") and name in closure
        ):
            yield WrittenNames(name)
    inner = closure - frozenset(code.co_cellvars)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            bound = {*constant.co_varnames, *constant.co_cellvars}
            seen = {name: origin for name, origin in imported.items() if name not in bound}
            yield from _walk(constant, inner & frozenset(constant.co_freevars), seen)


def _steps(code: CodeType) -> list[_Step]:
    steps, skipped = [], 0
    for each in dis.get_instructions(code):
        effect = skipped + dis.stack_effect(each.opcode, each.arg, jump=False)
        if each.opname in ("EXTENDED_ARG", "NOP", "PUSH_NULL", "PRECALL", "RESUME"):
            skipped = effect
            continue
        skipped = 0
        if isinstance(each.argval, tuple) and each.opname.count("_FAST") == 2:
            first, second = each.argval  # Python 3.13 joins two instructions
            one, _, two = each.opname.removesuffix("_BORROW").partition("_FAST_")
            steps += [_Step(f"{one}_FAST", first, 0), _Step(two.replace("BORROW_", ""), second, effect)]
            continue
        steps.append(_Step(each.opname, each.argval, effect))
    return steps


def _imports(steps: Sequence[_Step]) -> dict[str, Imported]:
    """Local names that import statements bind."""
    bound: dict[str, Imported] = {}
    for position, step in enumerate(steps):
        if step.operation != "IMPORT_NAME":
            continue
        module, relative = str(step.argument), bool(steps[position - 2].argument)
        names_parts, part = steps[position - 1].argument is not None, ""
        for after in steps[position + 1 :]:
            if after.operation == "IMPORT_FROM":
                part = str(after.argument)
            elif after.operation in _STORE and names_parts:
                bound[str(after.argument)] = Imported(module, relative, (part,))
            elif after.operation in _STORE:
                # `import a.b` binds a, and `import a.b as c` binds a.b.
                bound[str(after.argument)] = Imported(module if part else module.partition(".")[0], relative, ())
                break
            elif after.operation not in ("SWAP", "POP_TOP"):
                break
    return bound


def _attributes(steps: Sequence[_Step], position: int) -> tuple[tuple[str, ...], Use]:
    names, place = _chain(steps, position)
    argument: tuple[object, ...] = ()
    if place < len(steps):
        if steps[place].operation in ("LOAD_CONST", "LOAD_SMALL_INT"):
            argument = (steps[place].argument,)
        elif steps[place].operation.startswith("LOAD_"):
            argument = (steps[place].argument, *_chain(steps, place)[0])
    return names, Use(changed=_is_changed(steps, place), argument=argument)


def _chain(steps: Sequence[_Step], position: int) -> tuple[tuple[str, ...], int]:
    """Attributes read from the value loaded at `position`, and the index after them."""
    place = position + 1
    while place < len(steps) and steps[place].operation in _ATTRIBUTE:
        place += 1
    return tuple(str(step.argument) for step in steps[position + 1 : place]), place


def _is_changed(steps: Sequence[_Step], place: int) -> bool:
    depth = 1
    for position, step in enumerate(steps[place:], place):
        if depth + step.effect < 1:
            plain, augmented = _CHANGES.get(step.operation, (0, 0))
            return depth == plain or (depth == augmented and steps[position - 1].operation == "SWAP")
        depth += step.effect
    return False
