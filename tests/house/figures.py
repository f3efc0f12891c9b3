"""Figures of the house, for this checkout or another: `python -m tests.house.figures [CHECKOUT ...]`."""

from __future__ import annotations

import ast
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from tests.house.prose import CODE_ROOTS, PAGES, TEST_ROOTS, files_below, prose_of

PACKAGE = "platform/forebay"
CLASS_ROOTS = ("platform/forebay", "bench", "studies", "jobs", "tests")
MAX_ARGUMENTS = 6
BROAD = ("Exception", "BaseException")

Function = ast.FunctionDef | ast.AsyncFunctionDef
Trees = Mapping[str, ast.Module]


def trees_of(repository: Path, *roots: str) -> dict[str, ast.Module]:
    """Syntax tree per Python file, by path relative to the checkout."""
    return {
        str(path.relative_to(repository)): ast.parse(path.read_bytes())
        for path in files_below(repository, roots, (".py",))
    }


@cache
def nodes_of(tree: ast.Module) -> tuple[ast.AST, ...]:
    """All nodes of a syntax tree, walked once for all tests."""
    return tuple(ast.walk(tree))


def lines_of(repository: Path, *roots: str) -> dict[str, int]:
    """Number of lines per Python file that is not empty."""
    counts = {
        str(path.relative_to(repository)): len(path.read_text().splitlines())
        for path in files_below(repository, roots, (".py",))
    }
    return {file: lines for file, lines in counts.items() if lines}


def functions_of(trees: Trees) -> Iterator[tuple[str, Function]]:
    """Every function and method, with its file."""
    for file, tree in trees.items():
        for node in nodes_of(tree):
            if isinstance(node, Function):
                yield file, node


def num_arguments(function: Function) -> int:
    """Number of arguments without `self` and `cls`."""
    given = function.args
    names = [argument.arg for argument in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def is_command(function: Function) -> bool:
    """Whether it is a command, whose signature is its options, each annotated with its help text."""
    return any(argument.annotation and "typer." in ast.unparse(argument.annotation) for argument in function.args.args)


def modules_per_folder(repository: Path, *roots: str) -> Counter[str]:
    """Number of modules in each folder, without `__init__.py`."""
    paths = files_below(repository, roots, (".py",))
    return Counter(str(path.parent.relative_to(repository)) for path in paths if path.name != "__init__.py")


def classes_by_name(trees: Trees) -> dict[str, list[str]]:
    """Files that define a class of each name, once per definition."""
    found = defaultdict(list)
    for file, tree in trees.items():
        for node in nodes_of(tree):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(file)
    return dict(found)


def broad_excepts(trees: Trees) -> list[str]:
    """`file:line` of each handler that catches all exceptions, and of each call of `foreign_code` that does."""
    return [
        f"{file}:{node.lineno}"
        for file, tree in trees.items()
        for node in nodes_of(tree)
        if (isinstance(node, ast.ExceptHandler) and _is_broad(node.type))
        or (isinstance(node, ast.Call) and _catches_all(node))
    ]


def _catches_all(call: ast.Call) -> bool:
    """Whether the call is of a function of `runtime/foreign_code.py`, and names no kinds of errors."""
    name = ast.unparse(call.func)
    if name == "replaced_errors":
        return len(call.args) < 2 and all(each.arg != "kinds" for each in call.keywords)
    return name in ("outcome_of", "error_of")


def _is_broad(caught: ast.expr | None) -> bool:
    if caught is None:
        return True
    each = caught.elts if isinstance(caught, ast.Tuple) else [caught]
    return any(ast.unparse(name).rpartition(".")[2] in BROAD for name in each)


def circles(trees: Trees) -> list[list[str]]:
    """Groups of modules of the package that import each other, also inside functions or with `import_module`."""
    modules = {_module_name(file): tree for file, tree in trees.items() if file.startswith(f"{PACKAGE}/")}
    below = {name: _imported(name, tree, modules) for name, tree in modules.items() if name != "forebay"}
    return [sorted(group) for group in _strongly_connected(below) if len(group) > 1]


def imported_by(sources: Trees) -> dict[str, set[str]]:
    """Importers of each module, by path relative to the package.

    Tables of public names in `__init__.py` do not count.
    """
    modules = {_module_name(f"{PACKAGE}/{file}"): tree for file, tree in sources.items()}
    files = {_module_name(f"{PACKAGE}/{file}"): file for file in sources}
    users: dict[str, set[str]] = {file: set() for file in sources if not file.endswith("__init__.py")}
    for name, tree in modules.items():
        if not files[name].endswith("__init__.py"):
            for other in _imported(name, tree, modules):
                users.setdefault(files[other], set()).add(files[name])
    return {file: found for file, found in users.items() if not file.endswith("__init__.py")}


def _module_name(file: str) -> str:
    return ".".join(Path(file).with_suffix("").parts[1:]).removesuffix(".__init__")


def _imported(importer: str, tree: ast.Module, modules: Mapping[str, ast.Module]) -> set[str]:
    names: set[str] = set()
    for node in nodes_of(tree):
        match node:
            case ast.Import():
                names |= {alias.name for alias in node.names}
            case ast.ImportFrom(module=str(module)):
                names |= {module} | {f"{module}.{alias.name}" for alias in node.names}
            case ast.Call(func=function, args=[ast.Constant(value=str(name)), *_]):
                called = ast.unparse(function).rpartition(".")[2]
                names |= {name.partition(":")[0]} if called in ("import_module", "resolve_name") else set()
    return {name for name in names if name in modules and name not in (importer, "forebay")}


def _strongly_connected(below: Mapping[str, set[str]]) -> list[set[str]]:
    """Strongly connected components, by Tarjan's algorithm."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[set[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in below.get(name, ()):
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            start = stack.index(name)
            found.append(set(stack[start:]))
            del stack[start:]

    for name in below:
        if name not in index:
            visit(name)
    return found


def figures(repository: Path) -> dict[str, str]:
    """Every figure by its name, as text."""
    package = trees_of(repository, PACKAGE)
    lines = lines_of(repository, PACKAGE)
    tests = lines_of(repository, "tests")
    total = sum(lines.values())
    largest = max(lines, key=lambda file: lines[file])
    ((fullest, most),) = modules_per_folder(repository, PACKAGE).most_common(1)
    ((fullest_tests, most_tests),) = modules_per_folder(repository, "tests").most_common(1)
    lengths = [(node.end_lineno or node.lineno) - node.lineno + 1 for _, node in functions_of(package)]
    greedy = [
        f"{file}:{node.name}"
        for file, node in functions_of(package)
        if num_arguments(node) > MAX_ARGUMENTS and not is_command(node)
    ]
    broad = broad_excepts(package)
    classes = classes_by_name(trees_of(repository, *CLASS_ROOTS))
    repeated = {name: files for name, files in classes.items() if len(files) > 1}
    code, pages, ours = (prose_of(repository, roots) for roots in (CODE_ROOTS, PAGES, TEST_ROOTS))
    return {
        "files of the package": f"{len(lines)} (tests: {len(tests)})",
        "lines of the package": f"{total} (tests: {sum(tests.values())})",
        "median file": f"{statistics.median(lines.values()):g} lines",
        "largest file": f"{lines[largest]} lines, {largest}",
        "longest function, 90th percentile": f"{statistics.quantiles(lengths, n=10)[-1]:g} lines",
        "most modules in a folder": f"{most}, {fullest} (tests: {most_tests}, {fullest_tests})",
        f"functions over {MAX_ARGUMENTS} arguments": f"{len(greedy)} {greedy or ''}",
        "broad excepts": f"{len(broad)}, {1000 * len(broad) / total:.2f} per 1,000 lines",
        "circles of imports": f"{len(found := circles(package))} {found or ''}",
        "classes that share a name": f"{sum(map(len, repeated.values()))} under {len(repeated)} names",
        **{
            f"unwanted expressions in the prose of {name}": (
                f"{prose.faults_per_1000:.2f} per 1,000 words ({len(prose.faults)} in {prose.num_words})"
            )
            for name, prose in (("the code", code), ("docs and notebooks", pages), ("the tests", ours))
        },
    }


if __name__ == "__main__":
    for checkout in sys.argv[1:] or ["."]:
        print(f"== {checkout}")
        for name, value in figures(Path(checkout).resolve()).items():
            print(f"{name}: {value}")
