"""Schemes, names and options of URIs.

On HDFS, names may hold a `?`.
"""

from __future__ import annotations

import re

SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
HADOOP_SCHEMES = ("hdfs", "viewfs")
END_OF_NAME = "?&"
"""Written after a name on HDFS whose own end looks like options."""

_HADOOP = re.compile(rf"(?:{'|'.join(HADOOP_SCHEMES)})://", re.IGNORECASE)
_HADOOP_OPTIONS = re.compile(r"\?(?:&|\w+=[^&?]*(?:&\w+=[^&?]*)*)$")


def has_local_name(uri: str) -> bool:
    """Whether `uri` is a path or `file://`. Opens no storage."""
    found = SCHEME.match(uri)
    return found is None or found[1].lower() == "file"


def is_hadoop(uri: str) -> bool:
    """Whether a URI names HDFS."""
    return _HADOOP.match(uri) is not None


def split_options(uri: str) -> tuple[str, str]:
    """Name and options of a URI.

    The options begin with their `?`. A local path has none.

    On HDFS, only `name=value` pairs, or `?&`, at the end are options.

    >>> split_options("s3://bucket/clicks?region=eu-west-1")
    ('s3://bucket/clicks', '?region=eu-west-1')
    >>> split_options("hdfs://name/day=?/a.parquet?replication=2")
    ('hdfs://name/day=?/a.parquet', '?replication=2')
    """
    if is_hadoop(uri):
        found = _HADOOP_OPTIONS.search(uri)
        return (uri[: found.start()], found[0]) if found else (uri, "")
    name, mark, options = uri.partition("?") if "://" in uri else (uri, "", "")
    return name, mark + options


def with_options(name: str, options: str) -> str:
    """URI of which `split_options` gives `name` and `options`.

    >>> with_options("hdfs://name/a?b=c.parquet", "")
    'hdfs://name/a?b=c.parquet?&'
    """
    uri = name + options
    is_misread = not options and is_hadoop(uri) and _HADOOP_OPTIONS.search(uri)
    return uri + END_OF_NAME if is_misread else uri
