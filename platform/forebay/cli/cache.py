"""`forebay cache`: list, verify and empty a cache directory."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from forebay.cli.arguments import AsJson
from forebay.cli.output import print_facts, print_json, print_table, progress_bar
from forebay.data.cache.disk.accounts import DatasetUse
from forebay.data.cache.disk.directory import CacheDirectory
from forebay.data.cache.disk.disk_cache import DiskCache
from forebay.data.cache.disk.lease import CacheUser
from forebay.data.cache.spec import CacheSpec
from forebay.errors import ExitCode, InvalidOption
from forebay.runtime.formatting import age_text, bytes_text, did_you_mean

app = typer.Typer(help="Look into, check and empty a cache directory.", no_args_is_help=True)

Directory = Annotated[str, typer.Option("--path", help="The cache directory.")]
_DEFAULT = CacheSpec().path
_MOST_NAMED = 5


@app.command("ls")
def ls(path: Directory = _DEFAULT, as_json: AsJson = False) -> None:
    """List the datasets in the cache: size, hits, age, users."""
    cache = _open(path)
    users = cache.users()
    known = {use.dataset: use for use in cache.datasets()}
    for user in users:  # users whose first block has not arrived yet
        known.setdefault(user.dataset, DatasetUse(dataset=user.dataset, blocks=0, bytes=0, created_at=user.since))
    datasets = [_Listed(use, [user for user in users if user.dataset == use.dataset]) for use in known.values()]
    if as_json:
        used = {"path": str(cache.path), "used_bytes": cache.used_bytes}
        print_json(used | {"datasets": [dataset.facts() for dataset in datasets]})
        return
    print_facts({"path": cache.path, "used": bytes_text(cache.used_bytes)})
    print_table(("dataset", "bytes", "blocks", "hits", "age", "used by"), [dataset.cells() for dataset in datasets])


@app.command("verify")
def verify(path: Directory = _DEFAULT, as_json: AsJson = False) -> None:
    """Read every block and verify it.

    Corrupt ones are set aside and fetched again later. Exits with 1 if any was.
    """
    cache = _open(path)
    with progress_bar(hidden=as_json) as bar:
        task = bar.add_task("verifying", total=None)
        report = cache.verify(lambda done, total: bar.update(task, completed=done, total=total))
    print_json(asdict(report)) if as_json else print_facts(asdict(report) | {"bytes": bytes_text(report.bytes)})
    if report.bad:
        raise typer.Exit(ExitCode.FAILED)


@app.command("clear")
def clear(
    path: Directory = _DEFAULT,
    dataset: Annotated[str | None, typer.Option(help="Only the dataset of this name in `cache ls`.")] = None,
    as_json: AsJson = False,
) -> None:
    """Empty the cache.

    Safe while jobs run: blocks that they have mapped stay valid, others are fetched again.
    """
    cache = _open(path)
    if dataset is not None and dataset not in (known := [use.dataset for use in cache.datasets()]):
        hint = did_you_mean(dataset, known)
        listed = ", ".join(known[:_MOST_NAMED]) + (", ..." if len(known) > _MOST_NAMED else "") or "nothing"
        raise InvalidOption(f"--dataset {dataset}: this cache does not have it.{hint} It has {listed}.")
    freed = cache.clear(dataset)
    print_json({"freed_bytes": freed}) if as_json else print_facts({"freed": bytes_text(freed)})


def _open(path: str) -> DiskCache:
    spec = CacheSpec(path=path)
    # A typing error must not create a cache.
    if path != _DEFAULT and not CacheDirectory(Path(spec.directory)).is_cache:
        raise InvalidOption(f"cache directory {spec.directory}: there is no cache. Name the directory of a CacheSpec.")
    return spec.open()


class _Listed:
    """Dataset as `ls` shows it."""

    def __init__(self, use: DatasetUse, users: list[CacheUser]) -> None:
        self._use, self._users = use, users
        self._age_s = max(0.0, time.time() - use.created_at)

    def facts(self) -> dict[str, object]:
        """All facts, for programs.

        Times are Unix seconds, `age_s` is seconds.
        """
        return asdict(self._use) | {"age_s": self._age_s, "users": [asdict(user) for user in self._users]}

    def cells(self) -> tuple[object, ...]:
        """One cell per column."""
        use = self._use
        # A worker may use a dataset twice, for training and for evaluation.
        users = dict.fromkeys(f"{user.name} (pid {user.pid} on {user.host})" for user in self._users)
        return (
            use.dataset,
            bytes_text(use.bytes),
            use.blocks,
            use.hits,
            age_text(self._age_s),
            "\n".join(users) or "-",
        )
