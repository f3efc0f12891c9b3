"""Commands that take the parameters of a job file, as `name=value` or as `--name value`."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from typing import Any

from typer.core import TyperCommand

from forebay.cli.output import print_error, print_line
from forebay.errors import ForebayError
from forebay.runtime.formatting import did_you_mean


class JobCommand(TyperCommand):
    """A command whose other options are parameters of the job file that it names.

    Its help lists them, if it is asked for with the file.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        known = {name for each in self.get_params(ctx) for name in (*each.opts, *each.secondary_opts)}
        ctx.meta["forebay.job_file"] = next((word for word in args if word.endswith(".py")), None)
        words, parameters = split_words(args, known)
        parsed: list[str] = super().parse_args(ctx, words)
        ctx.params["parameters"] = [*(ctx.params.get("parameters") or ()), *parameters]
        return parsed

    def format_help(self, ctx: Any, formatter: Any) -> None:
        super().format_help(ctx, formatter)
        if (file := ctx.meta.get("forebay.job_file")) is not None:
            _show_parameters(file)


def split_words(words: Sequence[str], known: Collection[str]) -> tuple[list[str], list[str]]:
    """Split off the options that are not in `known`, as `name=value`.

    An option that is nearly one of `known` stays: the command refuses it, and names the one that is meant. An option
    without a value is `true`. A job file is never a value.

    >>> split_words(["--fast", "job.py", "--global-batch", "8", "--driver", "local"], {"--driver"})
    (['job.py', '--driver', 'local'], ['fast=true', 'global_batch=8'])
    """
    kept, parameters, rest = list[str](), list[str](), list(words)
    while rest and rest[0] != "--":
        word = rest.pop(0)
        option, sign, value = word.partition("=")
        if not option.startswith("--") or option in known or did_you_mean(option, known, cutoff=0.8):
            kept.append(word)
            continue
        if not sign:
            value = "true" if not rest or rest[0].startswith("--") or rest[0].endswith(".py") else rest.pop(0)
        parameters.append(f"{option[2:].replace('-', '_')}={value}")
    return [*kept, *rest], parameters


def _show_parameters(file: str) -> None:
    # Imported here because torch takes seconds to import.
    from forebay.cli.job_file import parameters_of  # noqa: PLC0415

    try:
        found = parameters_of(file)
    except ForebayError as error:
        print_error(error, as_json=False)
        sys.exit(error.exit_status)
    print_line(f"Parameters of {file}, as name=value or --name value:\n" + "\n".join(f"  {each}" for each in found))
