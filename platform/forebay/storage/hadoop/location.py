"""Resolution of `hdfs://` and `viewfs://`.

A URI names the NameNode, the user, and options.
"""

from __future__ import annotations

import getpass
import os
from pathlib import Path
from urllib.parse import parse_qsl
from xml.etree import ElementTree

from forebay.errors import InvalidOption
from forebay.runtime.uris import END_OF_NAME, split_options
from forebay.storage.hadoop.clients import ONCE, HadoopAddress, ask_name_node
from forebay.storage.hadoop.files import HadoopFiles

_PORT = 8020
_KERBEROS = ("kerberos_principal", "kerberos_keytab", "kerberos_cache")
_OPTIONS = ("user", "replication", *_KERBEROS)


def refuse_unknown_options(uri: str) -> None:
    """Raise `InvalidOption` for options that `hdfs://` does not have.

    Their values, possibly secrets, are not shown.
    """
    name, options = split_options(uri)
    unknown = sorted({option for option, _ in parse_qsl(options[1:], keep_blank_values=True)} - set(_OPTIONS))
    if unknown:
        scheme, _, rest = name.partition("://")
        shown = f"{scheme}://{rest.rpartition('@')[2]}"
        raise InvalidOption(
            f"{shown}: {scheme}:// has no option {', '.join(unknown)}. It has {', '.join(_OPTIONS)}; everything else "
            f"is set in the files of HADOOP_CONF_DIR. A name that has a ? here is written with {END_OF_NAME} at its "
            "end.",
            uri=shown,
        )


def open_hadoop(scheme: str, netloc: str, query: str, *, once: bool) -> HadoopFiles:
    """Files of the HDFS that a URI names.

    With `once`, for reads that `storage.retry` repeats.

    Raises `InvalidOption` for a value or a user that hdfs-native cannot take, or if it is not installed.
    """
    user, _, host = netloc.rpartition("@")
    shown = f"{scheme}://{netloc}/" + (f"?{query}" if query else "")
    options = dict(parse_qsl(query, keep_blank_values=True))
    _check_user(shown, options.get("user") or user)
    kerberos = tuple((name, options[name]) for name in _KERBEROS if name in options)
    address = HadoopAddress(_url(scheme, host), ONCE if once else (), kerberos)
    ask_name_node(address, lambda _client: None)  # a missing package is found now
    return HadoopFiles(address, _replication(shown, options.get("replication")))


def _check_user(shown: str, user: str) -> None:
    # hdfs-native reads HADOOP_USER_NAME at every connect: one process has one user.
    present = os.environ.get("HADOOP_USER_NAME") or getpass.getuser()
    if user and user != present:
        raise InvalidOption(
            f"{shown} names the user {user!r}, but this process is {present!r} for HDFS. Set HADOOP_USER_NAME={user} "
            "here and on the workers, and leave the user out of the URI.",
            uri=shown,
        )


def _replication(shown: str, text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isdecimal() or int(text) == 0:
        raise InvalidOption(f"{shown}: replication={text} is not a number of copies, such as 3.", uri=shown)
    return int(text)


def _url(scheme: str, host: str) -> str:
    if not host:
        return ""
    is_named = scheme == "viewfs" or ":" in host or host in _name_services()
    return f"{scheme}://{host}" if is_named else f"{scheme}://{host}:{_PORT}"


def configured_hosts() -> set[str]:
    """Hosts in this machine's configuration: name services and fs.defaultFS."""
    default = _configuration("core-site.xml").get("fs.defaultFS", "").partition("://")[2].partition("/")[0]
    return _name_services() | {default.lower().removesuffix(f":{_PORT}")}


def _name_services() -> set[str]:
    """Name services in the configuration of this machine.

    Each stands for several NameNodes.
    """
    prefix = "dfs.ha.namenodes."
    names = _configuration("hdfs-site.xml")
    return {name.removeprefix(prefix) for name in names if name.startswith(prefix)}


def _configuration(file: str) -> dict[str, str]:
    home = os.environ.get("HADOOP_HOME")
    folder = os.environ.get("HADOOP_CONF_DIR") or (f"{home}/etc/hadoop" if home else None)
    path = Path(folder, file) if folder else None
    if path is None or not path.exists():
        return {}
    root = ElementTree.parse(path).getroot()  # noqa: S314 - the operator's own file
    return {entry.findtext("name") or "": entry.findtext("value") or "" for entry in root.iter("property")}
