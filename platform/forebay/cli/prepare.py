"""`forebay prepare`: prepare, list and remove datasets."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from forebay.cli.arguments import AsJson, JobFile, Parameters
from forebay.cli.job_command import JobCommand
from forebay.cli.output import only_the_document, print_facts, print_json, print_table
from forebay.cli.preparation_display import shown_preparations
from forebay.data.manifest.prepared import Prepared, find_prepared, list_prepared, remove_prepared
from forebay.data.preparation.progress import tell
from forebay.errors import InvalidOption
from forebay.runtime.formatting import age_text, bytes_text, count_text, seconds_text
from forebay.storage.filesystem import resolve
from forebay.storage.writer_lease import hold_lease

_FOLDER = re.compile(r"-[0-9a-f]{16}$")


class _JobFirst(TyperGroup):
    """Command group that defaults to `job`.

    It applies if the first argument is not a command: `forebay prepare JOB.py`.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            args = ["job", *args]
        parsed: list[str] = super().parse_args(ctx, args)
        return parsed


app = typer.Typer(
    cls=_JobFirst,
    help="Prepare a job's data without training, or list and remove prepared data.\n\n"
    "`forebay prepare JOB.py [NAME=VALUE]...`",
    no_args_is_help=True,
)


@app.command("job", cls=JobCommand)
def job(job: JobFile, parameters: Parameters = None, as_json: AsJson = False) -> None:
    """Prepare the data of a job, and train nothing.

    Calls the job file's function. Sealed datasets are reused.
    """
    with only_the_document(as_json):
        found = _prepare_job_data(job, parameters or ())
    if as_json:
        print_json({"prepared": [_facts(prepared) for prepared in found]})
        return
    if not found:
        print_facts({"prepared": "nothing: this job calls neither fb.prepare nor fb.preparation.from_ray_data"})
    for prepared in found:
        print_facts(
            {
                "prepared": prepared.folder,
                "rows": prepared.rows,
                "row groups": len(prepared.manifest),
                "files": f"{len(prepared.files)}, {bytes_text(prepared.num_bytes)}",
                "key": ", ".join(prepared.key) or "- (order of arrival)",
                "fitted": ", ".join([*prepared.statistics, *prepared.vocabularies, *prepared.preprocessors]) or "-",
                "took": f"{seconds_text(prepared.seconds)} s",
            }
        )


@app.command("ls")
def ls(
    into: Annotated[str, typer.Argument(help="Folder or URI given as into=.")] = "runs/prepared",
    as_json: AsJson = False,
) -> None:
    """List prepared datasets.

    Also folders of preparations that did not end or are under way.
    """
    found = list(list_prepared(into))
    if as_json:
        facts = [_facts(prepared) if prepared else {"folder": folder, "sealed": False} for folder, prepared in found]
        print_json({"into": resolve(into).uri, "prepared": facts})
        return
    if not found:
        print_facts({"prepared": f"nothing in {resolve(into).uri}"})
        return
    print_table(("folder", "rows", "size", "key", "age"), [_cells(folder, prepared) for folder, prepared in found])


@app.command("rm")
def rm(
    folder: Annotated[str, typer.Argument(help="Folder of one dataset, as `forebay prepare ls` prints it.")],
    as_json: AsJson = False,
) -> None:
    """Remove a prepared dataset, or an unfinished preparation.

    A running job that still reads it fails.
    """
    location = resolve(folder)
    if find_prepared(folder) is None and not _FOLDER.search(location.path.rstrip("/")):
        raise InvalidOption(
            f"{location.uri} is not a prepared dataset. `forebay prepare ls INTO` lists the folders.",
            path=location.uri,
        )
    if not location.fs.get_file_info(location.path).type:
        raise InvalidOption(f"{location.uri} does not exist. `forebay prepare ls INTO` lists the folders.")
    with hold_lease(folder, lambda holder: tell(f"waiting for {holder}, which prepares it")):
        remove_prepared(folder)
    print_json({"removed": location.uri}) if as_json else print_facts({"removed": location.uri})


def _prepare_job_data(path: str, words: Sequence[str]) -> list[Prepared]:
    """Call the job file's function, and collect its datasets.

    For a sweep, the datasets of one possible trial.
    """
    from forebay.cli.job_file import job_or_sweep_of  # noqa: PLC0415 - torch takes seconds to import
    from forebay.sweep.sweep import Sweep  # noqa: PLC0415

    with shown_preparations() as display:
        made = job_or_sweep_of(path, words)
        if isinstance(made, Sweep):
            from forebay.sweep.setup import prepare  # noqa: PLC0415 - Ray Tune takes seconds to import

            prepare(made)
    return display.found


def _facts(prepared: Prepared) -> dict[str, object]:
    return {
        "folder": prepared.folder,
        "sealed": True,
        "fingerprint": prepared.fingerprint,
        "manifest": prepared.manifest.id,
        "rows": prepared.rows,
        "row_groups": len(prepared.manifest),
        "files": len(prepared.files),
        "bytes": prepared.num_bytes,
        "key": prepared.key,
        "seconds": prepared.seconds,
        "sealed_at": prepared.sealed_at,
    }


def _cells(folder: str, prepared: Prepared | None) -> tuple[object, ...]:
    name = folder.partition("?")[0].rpartition("/")[2]
    if prepared is None:
        return (name, "not sealed", "-", "-", "-")
    age = age_text(max(time.time() - prepared.sealed_at, 0.0))
    return (name, count_text(prepared.rows), bytes_text(prepared.num_bytes), ", ".join(prepared.key) or "-", age)
