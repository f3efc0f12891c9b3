"""Commands that take the parameters of a job file, as `name=value` or as `--name value`."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Sequence
from difflib import get_close_matches
from typing import Any

from typer.core import TyperCommand

from forebay.cli.output import print_error, print_line
from forebay.errors import ForebayError


class JobCommand(TyperCommand):
    """A command whose other options are parameters of the job file that it names.

    Its help lists them, if it is asked for with the file.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        known = {name for each in self.get_params(ctx) for name in (*each.opts, *each.secondary_opts)}
        ctx.meta["forebay.job_file"] = next((word for word in args if word.endswith(".py")), None)
        parsed: list[str] = super().parse_args(ctx, list(as_parameters(args, known)))
        return parsed

    def format_help(self, ctx: Any, formatter: Any) -> None:
        super().format_help(ctx, formatter)
        if (file := ctx.meta.get("forebay.job_file")) is not None:
            _show_parameters(file)


def as_parameters(words: Sequence[str], known: Collection[str]) -> Iterator[str]:
    """Words with each option that is not in `known` as `name=value`.

    An option that is nearly one of `known` stays as it is: the command refuses it, and names the one that is meant. An
    option without a value is `true`.

    >>> list(as_parameters(["job.py", "--global-batch", "8", "--driver", "local", "--fast"], {"--driver"}))
    ['job.py', 'global_batch=8', '--driver', 'local', 'fast=true']
    """
    rest = list(words)
    while rest:
        word = rest.pop(0)
        option, sign, value = word.partition("=")
        if word == "--":
            yield from (word, *rest)
            return
        if not option.startswith("--") or option in known or get_close_matches(option, known, n=1, cutoff=0.8):
            yield word
            continue
        if not sign:
            value = "true" if not rest or rest[0].startswith("--") else rest.pop(0)
        yield f"{option[2:].replace('-', '_')}={value}"


def _show_parameters(file: str) -> None:
    # Imported here because torch takes seconds to import.
    from forebay.cli.job_file import parameters_of  # noqa: PLC0415

    try:
        found = parameters_of(file)
    except ForebayError as error:
        print_error(error, as_json=False)
        sys.exit(error.exit_status)
    print_line(f"Parameters of {file}, as name=value or --name value:\n" + "\n".join(f"  {each}" for each in found))
