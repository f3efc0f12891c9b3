"""Secrets in a JobSpec are refused.

They are refused: a spec is stored, shown and logged.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from forebay.fleet.spec.fields import fault
from forebay.storage.credentials import has_credentials, is_secret_name

# No form begins at each of many places and reads on to the end: a megabyte would take hours.
_FORMS = re.compile(
    r"\b(AKIA|ASIA)[0-9A-Z]{16}\b|\bhf_[A-Za-z0-9]{20,}|\bgh[pousr]_[A-Za-z0-9]{20,}"
    r"|\bgithub_pat_\w{20,}|\bsk-[A-Za-z0-9_-]{20,}"
    r"|\bxox[abprs]-[A-Za-z0-9-]{10,}|\bglpat-[A-Za-z0-9_-]{16,}|(?<![\w-])eyJ[\w-]{8,}\.eyJ[\w-]{8,}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY|\bAIza[\w-]{30,}"
)
# A bound for the scheme: without it, 100,000 letters take 10 s.
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,30}://\S+")
_HEADER = re.compile(r"\b(?:Bearer|Basic)\s+[\w.~+/-]{16,}", re.IGNORECASE)
_VALUE = r"""("[^"]*"|'[^']*'|[^\s;&|)]+)"""
_ASSIGNED = re.compile(rf"(?<![\w-])-{{0,2}}([A-Za-z_][\w-]*)={_VALUE}")
_OPTION = re.compile(rf"(?<!\S)--([A-Za-z][\w-]*)\s+{_VALUE}")
# Not secret: `--token-type` and `--key-length`.
_ABOUT_SECRETS = frozenset(
    {"budget", "count", "embedding", "format", "id", "ids", "index", "len", "length", "limit", "name", "prefix"}
    | {"ratio", "size", "style", "type", "url"}
)
# Not secret: `eos_token = "</s>"` and `tokens = 4096`.
_LEAST_LETTERS = 8


def refuse_secrets(facts: Mapping[str, Any]) -> None:
    """Raise `InvalidJobSpec` if a value looks like a secret.

    The error does not repeat it.
    """
    launch = facts["launch"]
    mounts = tuple(mount["path"] for mount in launch["mounts"])
    for name, value in launch["env"].items():
        if is_secret_name(name) and not _is_file(name, value, mounts):
            raise fault(
                f"{name} looks like a secret, and a job file is stored and shown. Keep it in a Secret and write "
                f'secret_env = {{{name} = "SECRET/KEY"}}.',
                *("launch", "env", name),
            )
    for number, task in enumerate(facts["task"]):
        for name, value in task["args"].items():
            if _is_secret_argument(name, value) and not _is_file(name, value, mounts):
                raise fault(
                    f"{name} looks like a secret, and arguments are stored and shown. Let the job read an environment "
                    f'variable, and write secret_env = {{{name.upper()} = "SECRET/KEY"}} in [launch].',
                    *("task", number, "args", name),
                )
        for word, following in pairwise((*task["command"], "")):
            _refuse_written(f"{word} {following}" if word.startswith("--") else word, "task", number, "command")
    for number, line in enumerate(launch["setup"]):
        _refuse_written(line, "launch", "setup", number)
    for path, text in _texts((), facts):
        _refuse_text(path, text)


def _refuse_written(text: str, *path: str | int) -> None:
    """Refuse a command with a secret in it.

    Examples: `export HF_TOKEN=...`, `--password ...`, `Authorization: Bearer ...`.
    """
    for name, value in (*_ASSIGNED.findall(text), *_OPTION.findall(text)):
        variable = name.upper().replace("-", "_")
        if _is_written_secret(name, value.strip("\"'")):
            raise fault(
                f"{name} looks like a secret, and commands are stored and shown. Write ${variable} there, and "
                f'secret_env = {{{variable} = "SECRET/KEY"}} in [launch].',
                *path,
            )
    if _HEADER.search(text):
        raise fault(
            "this command has credentials of a request in it, and commands are stored and shown. Write a variable "
            'there, such as $API_TOKEN, and secret_env = {API_TOKEN = "SECRET/KEY"} in [launch].',
            *path,
        )


def _is_written_secret(name: str, value: str) -> bool:
    is_about = name.lower().replace("-", "_").rpartition("_")[2] in _ABOUT_SECRETS
    is_reference = value.startswith(("$", "`", "/", "<", "["))
    return (
        is_secret_name(name)
        and not is_about
        and not is_reference
        and not _is_file(name, value, ())
        and len(value) >= _LEAST_LETTERS
    )


def _refuse_text(path: tuple[str | int, ...], text: str) -> None:
    if _FORMS.search(text):
        raise fault(
            "this text holds an access key or a token. Keep it in a Secret, and refer to it in launch.secret_env.",
            *path,
        )
    for uri in _URI.findall(text):
        # A controller reads what others submit: no key of theirs may open the storage of somebody else.
        if has_credentials(uri):
            raise fault(
                "this URI holds credentials. Write it without them, and give the pods access by their service account "
                "or by launch.secret_env (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY).",
                *path,
            )


def _is_secret_argument(name: str, value: object) -> bool:
    # `eos_token = "<|endoftext|>"` is a token of a vocabulary.
    is_text = isinstance(value, str) and not (value.startswith("<") and value.endswith(">"))
    return is_secret_name(name) and is_text and len(str(value)) >= _LEAST_LETTERS


def _is_file(name: str, value: str, mounts: tuple[str, ...]) -> bool:
    return any(value.startswith(f"{mount}/") for mount in mounts) or name.upper().endswith(("_FILE", "_PATH", "_DIR"))


def _texts(path: tuple[str | int, ...], value: Any) -> Iterator[tuple[tuple[str | int, ...], str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, Mapping):
        for name, each in value.items():
            yield from _texts((*path, name), each)
    elif isinstance(value, list | tuple):
        for number, each in enumerate(value):
            yield from _texts((*path, number), each)
