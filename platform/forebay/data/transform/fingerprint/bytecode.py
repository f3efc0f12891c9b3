"""Globals, closure variables and imports of a function's bytecode."""

from __future__ import annotations

import dis
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType


@dataclass(frozen=True, slots=True)
class Loaded:
    """Variable that is read, with its attributes.

    The attributes are those read from it directly. `settings.fill` is Loaded("settings", ("fill",)).
    """

    name: str
    attributes: tuple[str, ...]
    closure: bool


@dataclass(frozen=True, slots=True)
class Imported:
    """Import statement within a function.

    Relative ones begin with a dot.
    """

    module: str
    relative: bool


@dataclass(frozen=True, slots=True)
class WrittenNames:
    """Global or closure variable that is assigned.

    So one call can change the next.
    """

    name: str


Reference = Loaded | Imported | WrittenNames


def references(code: CodeType) -> list[Reference]:
    """References of `code`, each once, in order.

    They include the references of functions, lambdas and classes defined in it.
    """
    return list(dict.fromkeys(_walk(code, frozenset(code.co_freevars))))


def _walk(code: CodeType, closure: frozenset[str]) -> Iterator[Reference]:
    instructions = [i for i in dis.get_instructions(code) if i.opname not in ("EXTENDED_ARG", "NOP")]
    for position, instruction in enumerate(instructions):
        name, operation = instruction.argval, instruction.opname
        if operation == "LOAD_NAME" and name == "__name__":
            continue  # every class body begins by reading it
        if operation in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"):
            yield Loaded(name, _attributes(instructions, position), closure=False)
        elif operation in ("LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF") and name in closure:
            yield Loaded(name, _attributes(instructions, position), closure=True)
        elif operation in ("STORE_GLOBAL", "DELETE_GLOBAL") or (
            operation in ("STORE_DEREF", "DELETE_DEREF") and name in closure
        ):
            yield WrittenNames(name)
        elif operation == "IMPORT_NAME":
            yield Imported(name, relative=bool(instructions[position - 2].argval))
    inner = closure - frozenset(code.co_cellvars)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _walk(constant, inner & frozenset(constant.co_freevars))


def _attributes(instructions: list[dis.Instruction], position: int) -> tuple[str, ...]:
    names = []
    for instruction in instructions[position + 1 :]:
        if instruction.opname not in ("LOAD_ATTR", "LOAD_METHOD"):
            break
        names.append(str(instruction.argval))
    return tuple(names)
