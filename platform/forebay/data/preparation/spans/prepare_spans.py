"""Preparation span by span.

Each span becomes one file, in any process and in any order.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from forebay.data.manifest.manifest import Field
from forebay.data.manifest.prepared import Prepared, PreparedFile, prepared_file
from forebay.data.preparation.fits import FitPart
from forebay.data.preparation.parts import LAYOUT_VERSION, cut, write_part
from forebay.data.preparation.request import PreparationOptions, PreparationRequest
from forebay.data.preparation.sealing import Production, prepare_once
from forebay.data.preparation.spans.process_pool import map_unordered
from forebay.data.preparation.spans.source import SpanReader, SpanSource
from forebay.errors import InvalidOption, whole_number
from forebay.storage.atomic import write_failed
from forebay.storage.credentials import Access
from forebay.storage.filesystem import below, resolve
from forebay.storage.json_file import read_json_file, to_json, write_json_file

RECORDS = "_spans"
"""Folder of the records of finished spans, below the dataset's folder. Removed with the seal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenSpan:
    """Result of one span.

    Its file, or None if it has no rows, and the counts of its reader.
    """

    file: PreparedFile | None
    fields: tuple[Field, ...]
    counts: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanWriter:
    """Writes spans as files.

    Pickled for each process.
    """

    reader: SpanReader
    folder: str
    row_group_rows: int
    access: Access

    def __call__(self, task: tuple[int, Any]) -> tuple[int, WrittenSpan]:
        """Write span `number`, or find its record.

        Raises `WriteFailed`.
        """
        number, span = task
        if (found := _recorded(self.folder, number)) is not None:
            return number, found
        table, counts = self.reader.read(span)
        done = WrittenSpan(file=None, fields=(), counts=dict(counts))
        if table.num_rows:
            file, fields = write_part(self.folder, number, list(cut([table], self.row_group_rows)))
            done = replace(done, file=file, fields=fields)
        try:
            write_json_file(below(self.folder, RECORDS), _record_name(number), to_json(asdict(done)))
        except OSError as error:
            raise write_failed(f"The record of span {number}", self.folder, error) from error
        return number, done


SpanMap = Callable[[SpanWriter, Sequence[tuple[int, Any]]], Iterator[tuple[int, WrittenSpan]]]
"""Calls the writer for each numbered span, and yields the results in any order."""


def in_processes(processes: int | None) -> SpanMap:
    """Prepare spans in processes of this machine.

    There is at most one per span. None: one per core.
    """
    most = os.cpu_count() or 1 if processes is None else whole_number("processes", processes, least=1)

    def call(writer: SpanWriter, tasks: Sequence[tuple[int, Any]]) -> Iterator[tuple[int, WrittenSpan]]:
        yield from map_unordered(writer, tasks, processes=min(most, len(tasks)))

    return call


def prepare_spans(source: SpanSource, options: PreparationOptions, call_all: SpanMap) -> Prepared:
    """Find or produce the sealed dataset of `source`.

    Args:
        source: Source of the spans.
        options: Options. `key`, `fits` and `inputs` are for tables, and refused.
        call_all: What prepares the spans.

    Raises as `fb.prepare`, and what the source raises.
    """
    refused = {"key": options.key, "fit": options.fits.fits, "inputs": options.inputs, "version": options.version}
    if given := [name for name, value in refused.items() if value]:
        raise InvalidOption(
            f"{given[0]}= is for functions that yield tables, and {type(source).__name__} is a source of spans, which "
            "names its inputs and its order itself. Leave it out."
        )
    origin = source.origin()
    layout = {"row_group_rows": str(options.row_group_rows), "layout": f"{LAYOUT_VERSION} spans"}
    request = PreparationRequest(
        function=source.open,
        arguments={},
        options=options,
        origin=replace(origin, options={**origin.options, **layout}),
        inputs=origin.inputs,
        list_inputs=lambda: source.origin().inputs,
    )
    prepared = prepare_once(request, partial(_produce, source, options, call_all), kept=("part-", RECORDS))
    location = resolve(below(request.folder, RECORDS))
    with suppress(OSError):  # the dataset is complete without this
        if location.fs.get_file_info(location.path).type:
            location.fs.delete_dir(location.path)
    return prepared


def _produce(
    source: SpanSource, options: PreparationOptions, call_all: SpanMap, folder: str, production: Production
) -> None:
    reader = source.open()
    writer = SpanWriter(reader=reader, folder=folder, row_group_rows=options.row_group_rows, access=Access([folder]))
    counts = {}
    for number, done in call_all(writer, list(enumerate(reader.spans()))):
        counts[number] = done.counts
        if done.file is not None:
            production.add(done.file, done.fields, FitPart())
    production.facts.update(reader.facts([counts[number] for number in sorted(counts)]))


def _recorded(folder: str, number: int) -> WrittenSpan | None:
    """Record of a span.

    None if the span was not written, or if its file is missing. None also for a part of a record: WebHDFS shows a
    file before its content, and keeps it so after a kill.
    """
    text = read_json_file(below(folder, RECORDS), _record_name(number), "prepared dataset")
    try:
        facts = json.loads(text or b"")
    except ValueError:
        return None
    try:
        file = None if facts["file"] is None else prepared_file(facts["file"], folder)
    except ValueError as error:
        record = below(below(folder, RECORDS), _record_name(number))
        raise InvalidOption(f"{record} is no record of a span: {error}. Remove the file.", path=record) from error
    if file is not None and not _exists(below(folder, file.path)):
        return None
    return WrittenSpan(file=file, fields=tuple(Field(**each) for each in facts["fields"]), counts=facts["counts"])


def _exists(uri: str) -> bool:
    location = resolve(uri)
    return bool(location.fs.get_file_info(location.path).type)


def _record_name(number: int) -> str:
    return f"{number:06d}.json"
