"""Preparation of a dataset by one process, once.

A sealed dataset is reused, and otherwise produced and sealed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace

from pyarrow import fs

from forebay.data.manifest.manifest import Field
from forebay.data.manifest.prepared import Prepared, PreparedFile, find_prepared, list_prepared, write_seal
from forebay.data.preparation.fits import FitPart
from forebay.data.preparation.progress import PreparationProgress, files_text, tell
from forebay.data.preparation.request import PreparationRequest
from forebay.errors import NoFiles
from forebay.runtime.formatting import count_text, seconds_text
from forebay.storage.atomic import write_failed
from forebay.storage.filesystem import resolve
from forebay.storage.globs import children
from forebay.storage.writer_lease import LEASE_NAME, hold_lease

log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Production:
    """Files and fits that a preparation has written.

    `add` reports progress.
    """

    name: str
    began: float = field(default_factory=time.monotonic)
    files: list[PreparedFile] = field(default_factory=list)
    parts: list[FitPart] = field(default_factory=list)
    fields: tuple[Field, ...] = ()
    preprocessors: dict[str, object] = field(default_factory=dict)
    facts: dict[str, object] = field(default_factory=dict)
    rows: int = 0

    def add(self, file: PreparedFile, fields: tuple[Field, ...], part: FitPart) -> None:
        """Add one file."""
        self.files.append(file)
        self.parts.append(part)
        self.fields = fields
        self.rows += sum(file.rows)
        tell(PreparationProgress(name=self.name, rows=self.rows, files=len(self.files), seconds=self.seconds))

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began


def prepare_once(
    request: PreparationRequest, produce: Callable[[str, Production], None], *, kept: tuple[str, ...] = ()
) -> Prepared:
    """Find or produce the sealed dataset of `request`.

    The listener gets it too.

    Args:
        request: What is prepared. Its fingerprint names the folder.
        produce: Writes the files into a folder and adds them to a `Production`. Called only if no seal exists, and
            by one process at a time. An exception leaves an unsealed folder, which the next call empties.
        kept: Beginnings of names that the next call keeps: it uses them, or writes the same again.

    Raises:
        WriteFailed: Storage refused a file or the seal.
        SourceChanged: An input file was replaced meanwhile.
        NoFiles: No row was prepared.
    """
    prepared = _prepare_once(request, produce, kept)
    tell(prepared)
    return prepared


def _prepare_once(
    request: PreparationRequest, produce: Callable[[str, Production], None], kept: tuple[str, ...]
) -> Prepared:
    name, folder = request.origin.name, request.folder
    if found := find_prepared(folder):
        tell(f"{name}: reused {folder} ({count_text(found.rows)} rows), as function, arguments and inputs are the same")
        return found
    with ExitStack() as held:
        with _writing(request):
            waiting = f"{name}: waiting for {{}}, which prepares it"
            lease = held.enter_context(hold_lease(folder, lambda holder: tell(waiting.format(holder))))
        if found := find_prepared(folder):
            tell(f"{name}: reused {folder}, which another process prepared")
            return found
        tell(f"{name}: preparing into {folder} ({_reason(request)})")
        with _writing(request):
            _remove_leftovers(folder, kept)
        production = Production(name=name)
        produce(folder, production)
        request.check_inputs()
        prepared = _prepared(request, production)
        lease.check()
        with _writing(request):
            write_seal(prepared)
    rows, seconds = count_text(prepared.rows), seconds_text(prepared.seconds)
    tell(f"{name}: prepared {rows} rows in {files_text(len(prepared.files))}, {seconds} s")
    return prepared


@contextmanager
def _writing(request: PreparationRequest) -> Iterator[None]:
    """Raise `WriteFailed` where storage refuses a write.

    The user's function is never called in such a block.
    """
    try:
        yield
    except OSError as error:
        raise write_failed(f"The prepared dataset {request.origin.name}", request.folder, error) from error


def _prepared(request: PreparationRequest, production: Production) -> Prepared:
    if not production.rows:
        raise NoFiles(f"{request.origin.name} gave no row, and a dataset needs some. Check its inputs and filters.")
    # Tasks end in any order.
    files, fields = tuple(sorted(production.files, key=lambda file: file.path)), production.fields
    written = Prepared(
        folder=request.folder,
        fingerprint=request.fingerprint,
        origin=request.origin,
        key=request.options.key,
        fields=fields,
        files=files,
    )
    fits = request.options.fits
    return replace(
        written,
        statistics=fits.statistics(production.parts, written.manifest),
        vocabularies=fits.vocabularies(production.parts),
        preprocessors=production.preprocessors,
        facts=production.facts,
        seconds=production.seconds,
    )


def _reason(request: PreparationRequest) -> str:
    """Why no sealed dataset could be used."""
    others: Sequence[Prepared] = [
        found
        for _, found in list_prepared(request.options.into)
        if found is not None and found.origin.name == request.origin.name
    ]
    if not others:
        return "for the first time"
    nearest = min(others, key=lambda found: (len(request.origin.differences(found.origin)), -found.sealed_at))
    changed = request.origin.differences(nearest.origin)
    return f"changed since {nearest.folder.rpartition('/')[2]}: {', '.join(changed[:5])}"


def _remove_leftovers(folder: str, kept: tuple[str, ...]) -> None:
    """Remove the files of an interrupted preparation.

    Names that begin with one of `kept` stay.
    """
    location = resolve(folder)
    for info in children(location.fs, location.path):
        if info.base_name == LEASE_NAME or info.base_name.startswith(kept):
            continue
        with suppress(FileNotFoundError):
            if info.type == fs.FileType.Directory:
                location.fs.delete_dir(info.path)
            else:
                location.fs.delete_file(info.path)
