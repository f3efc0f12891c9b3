"""Build the site: `make docs`.

Pages are `docs/`, README as the start page, the reference of `fb` from the docstrings, and the command line from its
help. A link to a missing page or anchor, a page outside the navigation, or a public name without a docstring fails.
"""

from __future__ import annotations

import ast
import inspect
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path, PurePosixPath
from types import ModuleType

import click
import typer

import forebay as fb
from forebay.cli.app import app_of

REPOSITORY = Path(__file__).resolve().parents[1]
CONFIG = REPOSITORY / "zensical.toml"
PAGES = REPOSITORY / "build" / "docs"
LINK = re.compile(r"(?P<text>!?\[[^\]]*\])\((?P<target>[^)\s]+)(?: \"[^\"]*\")?\)|src=\"(?P<source>[^\"]+)\"")
CODE = re.compile(r"^```.*?^```|`[^`\n]+`", re.MULTILINE | re.DOTALL)
FRONT_DOOR = {
    "data": ("Data: rows in order", "forebay.data"),
    "training": ("Training", "forebay.training"),
    "sweep": ("Sweeps", "forebay.sweep"),
    "fleet": ("Submission", "forebay.fleet"),
}
"""Pages of the names of `fb` itself: title, and the package that the names come from."""
OPTIONS = "    options:\n      heading: {name}\n      show_root_heading: true\n      show_root_full_path: false\n"


class BadDocs(Exception):
    """Documentation that would mislead a reader."""


def main() -> None:
    """Write all pages into `build/docs`, and build `build/site` from them."""
    if faults := write_pages():
        raise BadDocs("\n".join(faults))
    build = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
    plain = os.environ | {"NO_COLOR": "1"}
    if subprocess.run(build, cwd=REPOSITORY, env=plain, check=False).returncode:  # noqa: S603 - words of this file
        raise BadDocs("the site was not built: see above")


def write_pages() -> list[str]:
    """Write all pages into `build/docs`, and return what would mislead a reader."""
    shutil.rmtree(PAGES, ignore_errors=True)
    return [*copy_pages(), *write_reference(), *write_commands(), *outside_of_navigation()]


def copy_pages() -> Iterator[str]:
    """Copy `docs/` with its pictures, and README as `index.md`. Yields links to files that do not exist."""
    docs = REPOSITORY / "docs"
    for file in sorted(docs.rglob("*")):
        if file.suffix in (".png", ".svg", ".json"):
            write(file.relative_to(docs), file.read_bytes())
        elif file.suffix == ".md":
            yield from copy_page(file, file.relative_to(docs))
    yield from copy_page(REPOSITORY / "README.md", Path("index.md"))


def copy_page(file: Path, to: Path) -> Iterator[str]:
    """Copy a page, with links to pages of the site. A file outside of `docs/` is named, without a link."""
    text = file.read_text()
    code = [found.span() for found in CODE.finditer(text)]
    missing: list[str] = []

    def relinked(found: re.Match[str]) -> str:
        target = found["target"] or found["source"]
        is_code = any(start <= found.start() < stop for start, stop in code)
        if is_code or re.match(r"[a-z][a-z0-9+.-]*:|#", target):
            return found.group()
        path, _, anchor = target.partition("#")
        named = (file.parent / path).resolve()
        if not named.exists():
            missing.append(f"{file.relative_to(REPOSITORY)}: {target} does not exist")
            return found.group()
        page = page_of(named.relative_to(REPOSITORY))
        if page is None:
            return f"{found['text'][1:-1]} (`{named.relative_to(REPOSITORY)}`)"
        there = os.path.relpath(page, to.parent) + (f"#{anchor}" if anchor else "")
        return f'src="{there}"' if found["source"] else f"{found['text']}({there})"

    write(to, LINK.sub(relinked, text).encode())
    yield from missing


def page_of(file: Path) -> PurePosixPath | None:
    """Page of the site that shows a file of the repository, if one does."""
    if file == Path("README.md"):
        return PurePosixPath("index.md")
    if file.parts[0] != "docs":
        return None
    inside = PurePosixPath(*file.parts[1:])
    if (REPOSITORY / file).is_dir():
        return inside / "README.md" if (REPOSITORY / file / "README.md").exists() else None
    return inside


def write_reference() -> Iterator[str]:
    """Write the pages of `fb` and of its modules. Yields public names without a docstring, or on no page."""
    modules = {name: value for name in fb.__all__ if inspect.ismodule(value := getattr(fb, name))}
    written = set(modules)
    for page, (title, package) in FRONT_DOOR.items():
        names = [each for each in fb.__all__ if each not in modules and home_of(fb, each)[0].startswith(package)]
        names += ["World", "ForebayError"] if page == "training" else []
        written |= set(names)
        yield from write_names(f"reference/{page}.md", title, "", fb, names, "fb")
    for name, module in modules.items():
        public = [each for each in getattr(module, "__all__", vars(module)) if is_own(module, each)]
        yield from write_names(
            f"reference/fb.{name}.md", f"fb.{name}", module.__doc__ or "", module, public, f"fb.{name}"
        )
    yield from (f"fb.{name} is on no page of the reference" for name in sorted(set(fb.__all__) - written))


def is_own(module: ModuleType, name: str) -> bool:
    """Whether a module offers a name as its own: public, and from Forebay."""
    if name.startswith("_"):
        return False
    value = getattr(module, name)
    return not inspect.ismodule(value) and str(getattr(value, "__module__", "")).startswith("forebay.")


@cache
def imported(module: ModuleType) -> dict[str, tuple[str, str]]:
    """Module and name of each name that a module imports, by its source: it imports them when they are used."""
    found = {}
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("forebay"):
            found |= {each.asname or each.name: (str(node.module), each.name) for each in node.names}
    return found


def home_of(module: ModuleType, name: str) -> tuple[str, str]:
    """Module that defines a name, and its name there."""
    return imported(module).get(name, (module.__name__, name))


def write_names(page: str, title: str, intro: str, module: ModuleType, names: list[str], prefix: str) -> Iterator[str]:
    """Write a page of names. Yields those without a docstring."""
    parts = [f"# {title}\n\n{intro}\n"]
    for name in names:
        value = getattr(module, name)
        if not (inspect.getdoc(value) or "").strip():
            yield f"{prefix}.{name} has no docstring"
        parts.append(f"::: {'.'.join(home_of(module, name))}\n{OPTIONS.format(name=f'{prefix}.{name}')}")
    write(Path(page), "\n".join(parts).encode())


def write_commands() -> Iterator[str]:
    """Write the page of the command line. Yields commands and options without help."""
    root = typer.main.get_command(app_of())
    parts = [f"# Command line\n\n`forebay COMMAND --help` shows the same.\n\n{root.epilog}\n"]
    for context in commands(root.make_context("forebay", [], resilient_parsing=True)):
        command, name = context.command, context.command_path
        if not command.help:
            yield f"{name} has no help"
        usage = " ".join((name, *command.collect_usage_pieces(context)))
        parts.append(f"## {name}\n\n{inspect.cleandoc(command.help or '')}\n\n```\n{usage}\n```\n")
        records = filter(None, (each.get_help_record(context) for each in command.params))
        rows = [(option, text) for option, text in records if option != "--help"]
        yield from (f"{name} {option} has no help" for option, text in rows if not text)
        if rows:
            cells = (f"| `{option}` | {text} |" for option, text in rows)
            parts.append("| option | |\n|---|---|\n" + "\n".join(cells) + "\n")
    write(Path("reference/commands.md"), "\n".join(parts).encode())


def commands(context: click.Context) -> Iterator[click.Context]:
    """Contexts of all commands below one."""
    group = context.command
    if not hasattr(group, "list_commands"):
        yield context
        return
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if not command.hidden:
            yield from commands(type(context)(command, info_name=name, parent=context))


def outside_of_navigation() -> Iterator[str]:
    """Pages that no entry of the navigation names. Decisions are listed by their own page."""
    named = set(paths_of(tomllib.loads(CONFIG.read_text())["project"]["nav"]))
    for file in sorted(PAGES.rglob("*.md")):
        page = file.relative_to(PAGES).as_posix()
        if page not in named and not page.startswith("adr/"):
            yield f"{page} is not in the navigation ({CONFIG.name})"


def paths_of(entry: object) -> Iterator[str]:
    """Pages below an entry of the navigation."""
    if isinstance(entry, str):
        yield entry
    elif isinstance(entry, dict):
        yield from (path for value in entry.values() for path in paths_of(value))
    elif isinstance(entry, list):
        yield from (path for value in entry for path in paths_of(value))


def write(page: Path, content: bytes) -> None:
    """Write a page below `build/docs`."""
    (PAGES / page).parent.mkdir(parents=True, exist_ok=True)
    (PAGES / page).write_bytes(content)


if __name__ == "__main__":
    try:
        main()
    except BadDocs as error:
        sys.exit(str(error))
