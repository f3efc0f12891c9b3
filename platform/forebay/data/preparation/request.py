"""Request for a prepared dataset, and its fingerprint.

The fingerprint covers everything that decides the content.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import pyarrow.compute as pc

from forebay.data.manifest.manifest import Manifest
from forebay.data.manifest.prepared import Prepared, PreparedOrigin
from forebay.data.preparation.fits import Fit, Fits
from forebay.data.preparation.parts import LAYOUT_VERSION, ROW_GROUPS_PER_FILE
from forebay.data.sources.parquet_files import ANY_SUFFIX, find_files, lists_folder
from forebay.data.transform.fingerprint.function import function_identity, function_name
from forebay.data.transform.fingerprint.values import Identity, NotPlain, canonical, digest, value_identity
from forebay.errors import InvalidOption, SourceChanged, Unfingerprintable, whole_number
from forebay.runtime.formatting import did_you_mean
from forebay.runtime.uris import split_options
from forebay.storage.filesystem import below, resolve

_MOST_NAMED_INPUTS = 10_000
_FOLDER_DIGITS = 16
_WRITTEN = rf"[^/]+-[0-9a-f]{{{_FOLDER_DIGITS}}}/part-[0-9]+-[0-9a-f]+[.]parquet"
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_OPTIONS = ("into", "key", "row_group_rows", "fit", "fit_on", "inputs", "version", "processes")


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparationOptions:
    """Checked options of a preparation.

    `inputs` None: the function's own arguments name them.
    """

    into: str
    key: tuple[str, ...] = ()
    row_group_rows: int = 65_536
    fits: Fits = field(default_factory=Fits)
    inputs: tuple[str, ...] | None = None
    version: str | None = None

    def __post_init__(self) -> None:
        whole_number("row_group_rows", self.row_group_rows, least=1)
        if len(set(self.key)) < len(self.key):
            raise InvalidOption(f"key={self.key} names a column twice. Name each once.")


def preparation_options(
    *, key: str | Sequence[str], fit: Fit | Sequence[Fit], fit_on: Any, **others: Any
) -> PreparationOptions:
    """Options from arguments as users give them."""
    if not isinstance(key, Iterable) or isinstance(key, AbstractSet):
        raise InvalidOption(f"key={key!r}: give the name of a column, or a sequence of names.")
    if isinstance(others["inputs"], str):
        others["inputs"] = (others["inputs"],)
    if others["inputs"] is not None:
        others["inputs"] = tuple(map(str, others["inputs"]))
    return PreparationOptions(
        key=(key,) if isinstance(key, str) else tuple(key),
        fits=Fits(fits=tuple(fit) if isinstance(fit, Iterable) else (fit,), on=fit_on),
        **others,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparationRequest:
    """A function, its arguments and the options.

    `folder` is where the dataset of this origin is sealed. `inputs` are the versions of the input files, and
    `list_inputs` lists the present ones.
    """

    function: Callable[..., Any]
    arguments: Mapping[str, Any]
    options: PreparationOptions
    origin: PreparedOrigin
    inputs: Mapping[str, str]
    list_inputs: Callable[[], Mapping[str, str]]

    @property
    def fingerprint(self) -> str:
        """SHA-256 (hex) of the origin."""
        return digest(canonical(asdict(self.origin)).encode())

    @property
    def folder(self) -> str:
        """Folder of the dataset.

        It consists of the function's name and the beginning of the fingerprint.
        """
        name = re.sub(r"[^A-Za-z0-9]+", "-", self.origin.name).strip("-") or "prepared"
        return below(resolve(self.options.into).uri, f"{name}-{self.fingerprint[:_FOLDER_DIGITS]}")

    def check_inputs(self) -> None:
        """Raise `SourceChanged` if an input file was replaced or removed.

        Its rows may then be of both versions. A new file is only new for the next preparation.
        """
        present = self.list_inputs()
        for uri, version in self.inputs.items():
            if present.get(uri) != version:
                raise SourceChanged(
                    f"{uri} changed while {self.origin.name} was prepared from it: rows of both versions may be in it, "
                    "so nothing was kept. Prepare it again.",
                    uri=uri,
                )


def plan_request(
    function: Callable[..., Any],
    arguments: Mapping[str, Any],
    options: PreparationOptions,
) -> PreparationRequest:
    """Create a request with its fingerprint.

    Lists the input files, and opens none.

    Args:
        function: The user's function.
        arguments: Its arguments by name.
        options: Key, layout, fits, inputs.

    Raises:
        Unfingerprintable: The function's source does not show everything it uses.
        InvalidOption: An argument is unknown or has no identity, no input is named, or what was prepared before would
            be an input.
        NoFiles: An input does not exist.
    """
    name = function_name(function)
    _check_arguments(name, function, arguments)
    list_inputs = partial(_input_versions, _inputs(name, arguments, options))
    versions = list_inputs()
    for folder, files in versions.items():
        _refuse_own_output(options.into, folder, files)
    for value in arguments.values():
        if isinstance(value, Manifest) and value.root:
            _refuse_own_output(options.into, value.root, map(value.uri_of, value.files))
    origin = PreparedOrigin(
        name=name.rpartition(".")[2],
        function=_function_digest(function, options.version),
        arguments={key: _argument_digest(name, key, value) for key, value in sorted(arguments.items())},
        inputs=_named_inputs(versions),
        options={
            "key": repr(list(options.key)),
            "row_group_rows": str(options.row_group_rows),
            "fit": options.fits.identity,
            "fit_on": _expression_identity(options.fits.on),
            "layout": f"{LAYOUT_VERSION} {ROW_GROUPS_PER_FILE}",
        },
    )
    return PreparationRequest(
        function=function,
        arguments=arguments,
        options=options,
        origin=origin,
        inputs=_flat(versions),
        list_inputs=lambda: _flat(list_inputs()),
    )


def _check_arguments(name: str, function: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
    """Raise `InvalidOption` unless the function can be called with the arguments."""
    if not callable(function):
        raise InvalidOption(f"a preparation was given {function!r:.200}. Give a function that yields pyarrow tables.")
    try:
        parameters = inspect.signature(function).parameters
    except ValueError:  # compiled: it refuses the name itself
        return
    unknown = [each for each in arguments if each not in parameters]
    if unknown and all(each.kind is not inspect.Parameter.VAR_KEYWORD for each in parameters.values()):
        meant = did_you_mean(unknown[0], [*parameters, *_OPTIONS])
        raise InvalidOption(
            f"{unknown[0]}= is neither an option of a preparation nor an argument of {name}.{meant} The options are "
            f"{', '.join(_OPTIONS)}.",
            argument=unknown[0],
        )
    # Of a decorator itself: it may give the function that it wraps an argument of its own.
    called = inspect.signature(function, follow_wrapped=False).parameters.values()
    needed = [each.name for each in called if each.default is each.empty and each.kind in _BY_NAME]
    if missing := [each for each in needed if each not in arguments]:
        fix = " It is the name of an option: rename it." if missing[0] in _OPTIONS else f" Add {missing[0]}=..."
        raise InvalidOption(
            f"{name} needs its argument {missing[0]}, and the preparation was given none.{fix}",
            argument=missing[0],
        )


def _function_digest(function: Callable[..., Any], version: str | None) -> str:
    try:
        return digest(canonical(function_identity(function, version, reads_inputs=True)).encode())
    except Unfingerprintable as error:
        variable = str(error.facts.get("variable"))
        reason = str(error).partition(": ")[2].partition(". Give it")[0]
        raise Unfingerprintable(
            f"{function_name(function)} cannot be fingerprinted by its source: {reason}. Give the preparation "
            'version="1", and raise it whenever the result changes.',
            function=function_name(function),
            variable=variable,
        ) from error


def _expression_identity(expression: pc.Expression | None) -> str:
    """Text of an expression, with a digest.

    The text alone leaves out values of a long list and digits of float32 (pyarrow 26).
    """
    if expression is None:
        return str(None)
    _, (serialized,) = expression.__reduce__()
    return f"{expression} {hashlib.sha256(serialized).hexdigest()}"


def _argument_digest(function: str, name: str, value: Any) -> str:
    if isinstance(value, Manifest):
        return value.version
    if isinstance(value, Prepared):
        return value.content_id
    try:
        return digest(canonical(_plain_identity(value)).encode())
    except NotPlain as error:
        raise InvalidOption(
            f"{function}({name}=...) is a {error}, whose content cannot be compared between runs. Give plain data, a "
            "path, or what fb.scan and fb.prepare return.",
            argument=name,
        ) from error


def _plain_identity(value: Any) -> Identity:
    if isinstance(value, os.PathLike):
        return ["path", os.fspath(value)]
    return value_identity(value, _plain_identity)


def _inputs(
    function: str,
    arguments: Mapping[str, Any],
    options: PreparationOptions,
) -> Sequence[str]:
    if options.inputs is not None:
        return options.inputs
    if any(isinstance(value, Manifest | Prepared) for value in arguments.values()):
        return ()
    raise InvalidOption(
        f"{function} has no known inputs, so a changed file would not be noticed. Name its files and folders in "
        "inputs=[...], or give it fb.scan(...) as an argument. inputs=[] if it reads none."
    )


def _input_versions(uris: Sequence[str]) -> dict[str, dict[str, str]]:
    """Version of each input file, by each of `uris`."""
    # Of any suffix: the function may read CSV, or a list of names beside the Parquet files.
    return {uri: {file.uri: file.version for file in find_files(uri, suffixes=ANY_SUFFIX).files} for uri in uris}


def _refuse_own_output(into: str, folder: str, files: Iterable[str]) -> None:
    """Raise `InvalidOption` if `folder` holds `into`, and `files` of it were prepared there."""
    if not lists_folder(folder, into):
        return
    written = re.compile(re.escape(split_options(resolve(into).uri)[0].rstrip("/") + "/") + _WRITTEN)
    if own := next(filter(written.match, files), None):
        raise InvalidOption(
            f"into={into!r} lies within the input {folder}, so {own} was prepared before, and would be prepared again "
            "with the rows that it was made of. Give a folder outside of the input, or one that begins with _, which "
            "is not read.",
            into=into,
            uri=own,
        )


def _flat(versions: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    return {file: version for files in versions.values() for file, version in files.items()}


def _named_inputs(versions: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Version of each input file, by URI.

    Beyond 10,000 files, one digest for each of the given URIs.
    """
    if sum(map(len, versions.values())) > _MOST_NAMED_INPUTS:
        return {uri: digest(canonical(dict(files)).encode()) for uri, files in versions.items()}
    return _flat(versions)
