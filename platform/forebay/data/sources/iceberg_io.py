"""How pyiceberg opens the metadata of a table.

pyiceberg (0.12) takes the properties of a table for settings of its file system. A table could so name a class that is
imported and called, an endpoint, or a proxy. Here they are left out, and paths are checked.
"""

from __future__ import annotations

import gzip
import io
import re
import zlib
from typing import Any
from urllib.parse import unquote

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.io import FileIO, InputFile, InputStream, OutputFile
from pyiceberg.table import StaticTable, Table
from pyiceberg.table.metadata import TableMetadataUtil
from pyiceberg.typedef import EMPTY_DICT, Properties

from forebay.errors import InvalidOption
from forebay.runtime.uris import has_local_name, split_options
from forebay.storage.arrow_stores import ARROW_SCHEMES
from forebay.storage.atomic import read_small
from forebay.storage.boundary import Boundary
from forebay.storage.filesystem import resolve_source
from forebay.storage.json_file import LARGEST_BYTES

_GZIPPED = ".gz.metadata.json"


def static_table(metadata: str, boundary: Boundary) -> Table:
    """Table of a metadata file, at a URI that the user named."""
    return StaticTable(
        identifier=("static-table", metadata),
        metadata=TableMetadataUtil.parse_raw(_content(metadata)),
        metadata_location=metadata,
        io=BoundedIO(boundary),
        catalog=NoopCatalog("static-table"),
    )


def _content(metadata: str) -> str:
    """Text of a metadata file, decompressed within `LARGEST_BYTES`."""
    content = read_small(resolve_source(metadata), LARGEST_BYTES)
    try:
        if metadata.endswith(_GZIPPED):
            with gzip.open(io.BytesIO(content)) as opened:
                content = opened.read(LARGEST_BYTES + 1)
        if len(content) > LARGEST_BYTES:
            raise ValueError(f"it has more than {LARGEST_BYTES:,} bytes, decompressed")
        return content.decode()
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise InvalidOption(
            f"{metadata} is not a metadata file of an Iceberg table ({error}). Name another one.", uri=metadata
        ) from error


def table_of_catalog(catalog: Catalog, name: str) -> Table:
    """Table of a catalog. Only the catalog's settings open its files.

    Raises `InvalidOption` for a catalog that does not open its files by pyiceberg.
    """
    # The only hook: every catalog of pyiceberg 0.12 makes the files of its tables by this method.
    load: Any = catalog._load_file_io  # noqa: SLF001
    given: list[dict[str, Any]] = []

    def without_properties(properties: Properties = EMPTY_DICT, location: str | None = None) -> FileIO:
        given.append(dict(properties))
        return load({}, location)

    catalog._load_file_io = without_properties  # noqa: SLF001
    table = catalog.load_table(name)
    if not given:
        raise InvalidOption(
            f"The catalog {type(catalog).__name__} opens the files of tables itself, possibly with settings of the "
            "table. Name the metadata file of the table."
        )
    # A REST catalog mixes what it sends for this table with the properties of the table.
    own = table.metadata.properties
    settings = {key: value for key, value in given[-1].items() if key in table.config or own.get(key) != value}
    table.io = load(settings, table.metadata_location)
    return table


class StoredInput(InputFile):  # type: ignore[misc]
    """A file that Forebay's storage opens."""

    def __init__(self, uri: str, location: str | None = None) -> None:
        super().__init__(location or uri)
        self._uri = uri

    def __len__(self) -> int:
        with self.open() as opened:
            return int(opened.size())

    def exists(self) -> bool:
        raise NotImplementedError

    def open(self, seekable: bool = True) -> InputStream:  # noqa: ARG002 - pyiceberg's signature
        return resolve_source(self._uri).open_input()


class BoundedIO(FileIO):  # type: ignore[misc]
    """Reads files within the boundary of a table.

    By `inner`, the files of a catalog, or by Forebay's storage.
    """

    def __init__(self, boundary: Boundary, inner: FileIO | None = None) -> None:
        super().__init__()
        self._boundary, self._inner = boundary, inner

    def new_input(self, location: str) -> InputFile:
        uri = self._boundary.uri_of(location, is_encoded=False)
        if self._inner is None or has_local_name(uri):
            return StoredInput(uri, location)
        name = split_options(uri)[0]
        plain = unquote(name) if name.partition("://")[0] in ARROW_SCHEMES else name
        if re.search(r"[?#\t\r\n]", plain):  # which pyiceberg would take for other parts of a URL, or leave out
            raise self._boundary.refusal(location, "which pyiceberg cannot name")
        return self._inner.new_input(plain)

    def new_output(self, location: str) -> OutputFile:
        raise NotImplementedError

    def delete(self, location: str | InputFile | OutputFile) -> None:
        raise NotImplementedError
