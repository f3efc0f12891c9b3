"""MB/s of the same file on the local disk and in HDFS, read by each client in turn.

python -m bench.storage.hdfs [--hdfs hdfs://name:port/folder --webhdfs webhdfs://name:port/folder] [--megabytes 100]

Without a URI, the servers of the tests are started: a NameNode and a DataNode of Hadoop 2.7.4 on this machine, blocks
of 32 MiB. A Parquet file of 20 row groups of float32, without compression, is read whole, row group by row group
(20 ranges) and 8 of these at once, in rounds; the median counts. pyarrow's libhdfs takes part if ARROW_LIBHDFS_DIR,
CLASSPATH and JAVA_HOME are set.
"""

from __future__ import annotations

import argparse
import io
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from getpass import getuser
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs
from tests.storage.servers.hdfs import running

from forebay.storage.atomic import write_atomically
from forebay.storage.filesystem import below, resolve, resolve_source

NUM_GROUPS = 20
NUM_INFOS = 100

Ranges = Sequence[tuple[int, int]]
Place = tuple[fs.FileSystem, str]


def parquet(megabytes: float) -> tuple[bytes, Ranges]:
    """Content of the file, and the places (start, size) of its row groups."""
    rows = round(megabytes * 1_000_000 / 160)
    rng = np.random.default_rng(0)
    table = pa.table({f"f{index}": rng.standard_normal(rows, dtype=np.float32) for index in range(40)})
    sink = io.BytesIO()
    pq.write_table(table, sink, row_group_size=-(-rows // NUM_GROUPS), compression="none", use_dictionary=False)
    footer = pq.read_metadata(io.BytesIO(sink.getvalue()))
    groups = [footer.row_group(index) for index in range(footer.num_row_groups)]
    starts = [group.column(0).data_page_offset for group in groups]
    return sink.getvalue(), list(zip(starts, [group.total_byte_size for group in groups], strict=True))


def whole(place: Place, _ranges: Ranges) -> int:
    """Bytes of one read of the whole file."""
    with place[0].open_input_file(place[1]) as opened:
        return int(opened.read_buffer().size)


def one_by_one(place: Place, ranges: Ranges, at_once: int = 1) -> int:
    """Bytes of one open and one read per row group."""

    def read(wanted: tuple[int, int]) -> int:
        with place[0].open_input_file(place[1]) as opened:
            opened.seek(wanted[0])
            return int(opened.read_buffer(wanted[1]).size)

    with ThreadPoolExecutor(at_once) as pool:
        return sum(pool.map(read, ranges))


def eight_at_once(place: Place, ranges: Ranges) -> int:
    return one_by_one(place, ranges, 8)


def infos(place: Place) -> float:
    """Milliseconds of a request for the size and time of a file."""
    start = time.perf_counter()
    for _ in range(NUM_INFOS):
        place[0].get_file_info(place[1])
    return (time.perf_counter() - start) / NUM_INFOS * 1000


WAYS: dict[str, Callable[[Place, Ranges], int]] = {
    "whole file": whole,
    "row groups, 1 at once": one_by_one,
    "8 at once": eight_at_once,
}


def places(uris: dict[str, str]) -> dict[str, Place]:
    """File systems of the clients, and the path of the file in each."""
    found: dict[str, Place] = {}
    for name, uri in uris.items():
        location = resolve_source(uri)
        found[name] = location.fs, location.path
    if "ARROW_LIBHDFS_DIR" in os.environ:
        parts = urlsplit(uris["hdfs-native"])
        found["pyarrow's libhdfs"] = fs.HadoopFileSystem(str(parts.hostname), int(parts.port or 8020)), parts.path
    return found


@contextmanager
def servers(arguments: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """URIs of a folder by hdfs:// and by webhdfs://."""
    if arguments.hdfs:
        yield arguments.hdfs, arguments.webhdfs
        return
    with running(**{"dfs.blocksize": str(32 << 20)}) as hadoop:
        yield f"{hadoop.uri}/bench", f"webhdfs://127.0.0.1:{hadoop.http_port}/bench?user={getuser()}"


def measure(clients: dict[str, Place], ranges: Ranges, size: int, rounds: int) -> dict[str, list[float]]:
    """MB/s of each way, and milliseconds of a request, by client. One more round warms up."""
    found: dict[str, list[list[float]]] = {name: [] for name in clients}
    for _ in range(rounds + 1):
        for name, place in clients.items():
            figures = []
            for read in WAYS.values():
                start = time.perf_counter()
                read_bytes = read(place, ranges)
                figures.append(read_bytes / (time.perf_counter() - start) / 1e6)
                assert read_bytes in (size, sum(count for _, count in ranges))
            found[name].append([*figures, infos(place)])
    return {name: [statistics.median(column) for column in zip(*rows[1:], strict=True)] for name, rows in found.items()}


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hdfs", default="")
    parser.add_argument("--webhdfs", default="")
    parser.add_argument("--megabytes", type=float, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    arguments: Any = parser.parse_args(given)
    content, ranges = parquet(arguments.megabytes)
    with tempfile.TemporaryDirectory() as folder, servers(arguments) as (hdfs, webhdfs):
        uris = {"local disk": str(Path(folder, "a.parquet")), "hdfs-native": below(hdfs, "a.parquet")}
        for uri in uris.values():
            write_atomically(uri, content)
        if webhdfs:
            uris["WebHDFS"] = below(webhdfs, "a.parquet")
        try:
            table = measure(places(uris), ranges, len(content), arguments.rounds)
        finally:
            place = resolve(uris["hdfs-native"])
            place.fs.delete_file(place.path)
    print("| MB/s |", " | ".join(WAYS), "| ms per request for size and time |")
    print("|---|" + "---|" * (len(WAYS) + 1))
    for name, figures in table.items():
        print(f"| {name} |", " | ".join(f"{figure:.0f}" for figure in figures[:-1]), f"| {figures[-1]:.1f} |")


if __name__ == "__main__":
    main()
