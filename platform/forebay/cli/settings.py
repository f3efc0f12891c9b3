"""Storage of a command: its option, a variable, or the user's file. RUN: a name or a folder."""

from __future__ import annotations

import os
import re
import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated

import typer

from forebay.errors import BadUsage, InvalidOption
from forebay.runtime.formatting import did_you_mean

VARIABLE = "FOREBAY_STORAGE"
NAMED = f"{VARIABLE}, or storage in ~/.config/forebay/config.toml"
"""Default of the option `--storage`, for its help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Keys of the user's file.

    `storage` is the storage of commands that name none.
    """

    storage: str | None = None


def settings_file() -> Path:
    """Path of the user's file, which need not exist."""
    try:
        folder = Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser()
    except RuntimeError:  # a user of a container, without a name and a HOME
        folder = Path("/nonexistent")
    return folder / "forebay" / "config.toml"


def load_settings(path: Path) -> Settings:
    """Return the settings of a file, which are empty without it.

    Raises `InvalidOption` for a file that cannot be read, and for unknown keys and values of other types.
    """
    try:
        facts = tomllib.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return Settings()
    except (OSError, ValueError, RecursionError) as error:  # not UTF-8, or not TOML
        raise InvalidOption(f"{path} cannot be read ({error}). Correct the file, or remove it.") from error
    known = [each.name for each in fields(Settings)]
    for name, value in facts.items():
        if name not in known:
            hint = did_you_mean(name, known)
            raise InvalidOption(f"{path}: the key {name!r} is unknown.{hint} The file takes: {', '.join(known)}.")
        if not isinstance(value, str) or not value.strip():
            raise InvalidOption(
                f'{path}: {name} = {value!r} is not a text. Write for example {name} = "s3://lake/runs".'
            )
    found = Settings(**facts)
    if found.storage is not None and "://" not in found.storage and not found.storage.startswith(("/", "~")):
        raise InvalidOption(
            f"{path}: storage = {found.storage!r} depends on the working directory. Write an absolute path or a URI."
        )
    return found


def known_storage() -> str | None:
    """Return the storage of the variable, or of the user's file, or None.

    Raises as `load_settings`.
    """
    return os.environ.get(VARIABLE) or load_settings(settings_file()).storage


def storage_or_known(given: str | None, otherwise: str = "") -> str:
    """Return `given`, or the known storage.

    Raises `InvalidOption` without any. `otherwise` says what else the user may do.
    """
    found = given if given is not None else known_storage()
    if found is None:
        raise BadUsage(
            f'no storage is known. Give --storage URI, set {VARIABLE}, or write storage = "URI" into '
            f"{settings_file()}.{otherwise}"
        )
    return found


def storages_or_known(given: list[str] | None, otherwise: str = "") -> list[str]:
    """Return `given`, or the known storage. Raises as `storage_or_known`."""
    return given or [storage_or_known(None, otherwise)]


DEFAULT = "runs"
"""Storage of a job that names none."""
_FOLDER = re.compile(r"[/\\]|^[~.]")

RunWord = Annotated[str, typer.Argument(help="Name of a run, or its folder.", metavar="RUN")]
RunStorage = Annotated[
    str | None,
    typer.Option(
        "--storage",
        "-s",
        help="Storage of a run that is given by its name.",
        metavar="URI",
        show_default=f"{NAMED}, or {DEFAULT}/",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedRun:
    """Run by its name. `storage` is None where the words do not say it."""

    name: str
    storage: str | None = None

    @classmethod
    def of(cls, word: str, storage: str | None = None) -> NamedRun:
        """Parse RUN.

        It is a folder if it has a `/`, or begins with `~` or `.`. Raises `BadUsage` for a folder beside a storage.
        """
        if not _FOLDER.search(word):
            return cls(name=word, storage=storage)
        if storage is not None:
            raise BadUsage(f"{word} is a folder, and --storage {storage} is for names. Leave out --storage.")
        from forebay.training.runs.found_runs import storage_of  # noqa: PLC0415 - for folders only
        from forebay.training.runs.run_folder import RunFolder  # noqa: PLC0415 - as above

        folder = RunFolder.at(word)
        return cls(name=folder.name, storage=storage_of(folder))

    def found_in(self) -> str:
        """Return the storage that has the run.

        Without one in the words: this folder, the known storage, or `runs/`. Raises `InvalidOption` if none has it.
        """
        from forebay.training.runs.found_runs import has_run, no_run  # noqa: PLC0415 - as above

        known = known_storage() if self.storage is None else None
        looked = [self.storage] if self.storage is not None else [".", *([known] if known else []), DEFAULT]
        for storage in looked:
            if has_run(storage, self.name):
                return storage
        raise no_run(looked[-1] if known is None else known, self.name)


def folder_of(word: str, storage: str | None = None) -> str:
    """Return the folder of a run.

    A folder as it is given. Raises as `NamedRun`.
    """
    named = NamedRun.of(word, storage)
    if named.storage is not None and storage is None:
        return word
    from forebay.training.runs.run_folder import RunFolder  # noqa: PLC0415 - as above

    return RunFolder.below(named.found_in(), named.name).uri
