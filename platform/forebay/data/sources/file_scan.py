"""Scan of a single file.

Its footer comes from the file, or from what an earlier scan stored.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from forebay.data.filters.where import Where
from forebay.data.parquet.footer import FooterSizes, check_chunks, check_types, decode_footer, fetch_footer
from forebay.data.parquet.footer_facts import FooterFacts, read_facts, stored_facts
from forebay.data.parquet.footer_store import FooterStore, facts_name, footer_name, kept_version
from forebay.data.parquet.schemas import (
    arrow_schema,
    fields_of,
    has_registered_type,
    leaves_of,
    read_schema,
)
from forebay.data.parquet.statistics import check_statistics, untrusted_groups
from forebay.data.sources.dataset_files import SourceFile, Sources
from forebay.data.sources.file_columns import FileColumns, Scanned, file_columns
from forebay.errors import CorruptFile, InvalidOption, MissingColumn
from forebay.storage.filesystem import resolve_source
from forebay.storage.versions import etag_of

_MOST = 1 << 53
"""Limit for the rows and bytes of a row group. Larger numbers are a sign of corruption."""
_NANOSECONDS = "timestamp[ns"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FileScan:
    """Scan of each file of `sources`, safe for threads.

    Attributes:
        sources: Files of the dataset.
        columns: Selected columns. None for all.
        where: Row filter.
        store: Footers of earlier scans.
        new: Rows for the store, to be put there by the caller.
        sizes: Sizes of the footers that were read.
    """

    sources: Sources
    columns: tuple[str, ...] | None
    where: Where | None
    store: FooterStore | None
    new: list[tuple[str, bytes]] = field(default_factory=list)
    sizes: FooterSizes = field(default_factory=FooterSizes)

    def stored_facts(self, source: SourceFile) -> FooterFacts | None:
        """Return what the store has of an unchanged file."""
        if self.store is None or not (version := kept_version(source.file)):
            return None
        content = self.store.get(facts_name(source.file, version))
        return stored_facts(content) if content else None

    def from_facts(self, source: SourceFile, facts: FooterFacts) -> Scanned | None:
        """Scan a file by stored facts alone.

        Takes less time than a thread would. None if the scan needs the footer.
        """
        if self.where is not None or self.sources.ids is not None:
            return None
        selected = None if self.columns is None else set(self.columns)
        return self._scanned(source, facts, file_columns(source, facts.layout.fields, self.sources, selected))

    def from_file(self, source: SourceFile, stored: FooterFacts | None = None) -> Scanned:
        """Scan a file by its footer.

        The footer is read unless the store has it, as it has the `stored` facts.

        Raises:
            CorruptFile: The footer cannot be decoded.
            InvalidOption, MissingColumn: The filter or the selection does not fit the file.
            OSError: Storage failed.
        """
        file = source.file
        version = kept_version(file)
        if self.store is not None and stored is not None and version:
            kept = self.store.get(footer_name(replace(file, etag=stored.etag), version))
            if kept is not None:
                with suppress(CorruptFile):  # or else the file itself is read
                    return self._from_footer(source, pa.py_buffer(kept), stored.etag)[0]
        location = resolve_source(file.uri)
        with location.open_input() as opened:
            etag = file.etag or etag_of(location, opened)
            content = fetch_footer(file.uri, opened, self.sizes)
            is_listed_size = opened.size() == file.size
        scanned, facts = self._from_footer(source, content, etag)
        # Once more: the file may have been replaced during the read.
        if self.store is not None and version and is_listed_size and kept_version(file) == version:
            footer = footer_name(scanned.file, version), content.to_pybytes()
            self.new.extend([(facts_name(source.file, version), facts.to_bytes()), footer])
        return scanned

    def put_new(self, least_rows: int = 1) -> None:
        """Store the new rows, if there are so many."""
        rows = self.new[:]
        if self.store is not None and len(rows) >= least_rows:
            del self.new[: len(rows)]
            self.store.put(rows)

    def _from_footer(self, source: SourceFile, content: pa.Buffer, etag: str) -> tuple[Scanned, FooterFacts]:
        file = source.file
        footer = decode_footer(file.uri, content)
        schema = read_schema(file.uri, footer)
        fields = fields_of(schema)
        compared = self._compared(source, schema)
        selected = None if self.columns is None else {*self.columns, *compared}
        columns = file_columns(source, fields, self.sources, selected, schema)
        check_chunks(file.uri, footer, file.size)
        facts = read_facts(file.uri, footer, fields, etag)
        may_match = None
        if self.where is not None and facts.num_rows and not self._cut_times(columns).intersection(compared):
            may_match = _may_match(self.where, columns, footer, content, is_retyped=self._is_retyped(columns))
        return self._scanned(source, facts, columns, may_match), facts

    def _scanned(
        self, source: SourceFile, facts: FooterFacts, columns: FileColumns, may_match: Collection[int] | None = None
    ) -> Scanned:
        file = source.file
        names = None if self.columns is None else columns.names_in_file(self.columns)
        groups = [(*each, may_match is None or each[0] in may_match) for each in facts.measure(names)]
        if not all(0 <= count < _MOST for each in groups for count in each):
            raise CorruptFile(
                f"{file.uri} is corrupt: its footer counts rows or bytes below 0, or impossibly many. Write or copy "
                "the file again, or leave it out.",
                uri=file.uri,
            )
        return Scanned(
            file=file if file.etag == facts.etag else replace(file, etag=facts.etag),
            columns=columns,
            num_rows=facts.num_rows,
            groups=np.array(groups, dtype=np.int64).reshape(-1, 6).T,
            deleted=source.deleted,
        )

    def _is_retyped(self, columns: FileColumns) -> bool:
        """Whether the table's types differ from this file's."""
        types = {field.name: field.type for field in self.sources.table or ()}
        is_other = any(types.get(field.name, field.type) != field.type for field in columns.schema.fields)
        return is_other or bool(columns.stored)

    def _cut_times(self, columns: FileColumns) -> set[str]:
        """Columns whose nanoseconds the table cuts.

        The statistics of the file are of values that no filter compares.
        """
        types = {field.name: field.type for field in self.sources.table or ()}
        there = {field.name: field.type for field in columns.schema.fields}
        there |= {name: kind for name, _, kind in columns.stored}
        return {
            name for name, kind in there.items() if _NANOSECONDS in kind and _NANOSECONDS not in types.get(name, kind)
        }

    def _compared(self, source: SourceFile, schema: pa.Schema) -> Sequence[str]:
        """Columns that the filter compares, also by a field."""
        if self.where is None:
            return ()
        if self.sources.table is not None:
            return self.where.tops(field.name for field in self.sources.table)
        return self.where.tops([*schema.names, *(name for name, _ in source.constants)])


def _may_match(
    where: Where, columns: FileColumns, footer: pq.FileMetaData, content: pa.Buffer, *, is_retyped: bool
) -> set[int] | None:
    """Row groups that may match, by their statistics.

    None if the filter fits the types of a table and not of this file.
    """
    uri = columns.schema.uri
    check_types(uri, footer)
    check_statistics(uri, content, footer)
    try:
        bounds: pc.Expression = where.bounds(columns.kinds(arrow_schema(footer)), uri)
    except (InvalidOption, MissingColumn):
        if is_retyped:
            return None  # a filter that does not fit the table either is refused when the rows are read
        raise
    fragment = ds.ParquetFileFormat().make_fragment(pa.BufferReader(content))
    compared = columns.names_in_file(where.tops(field.name for field in columns.schema.fields))
    if any(has_registered_type(field.type) for field in footer.schema.to_arrow_schema() if field.name in compared):
        return None  # Arrow compares no such type
    paths = [footer.schema.column(leaf).path for leaf in range(footer.num_columns)]
    try:
        found = {group.id for group in fragment.subset(filter=bounds).row_groups}
        return found | untrusted_groups(footer, leaves_of(paths, compared))
    except pa.ArrowNotImplementedError:
        return None  # Arrow 26 has no order of extension types, such as JSON and UUID
    except OSError as error:  # of the buffer in memory, so storage did not fail
        raise CorruptFile(
            f"{uri} is corrupt: its statistics cannot be read ({error}). Write or copy the file again, leave it out, "
            "or scan without where=.",
            uri=uri,
        ) from error
    except pa.ArrowException as error:
        raise InvalidOption(
            f"where= does not fit the columns of {uri}: {error}. Compare each column with a value of its own type.",
            uri=uri,
        ) from error
