"""Datasets of the Hugging Face Hub, by the library `datasets`.

They come through its cache.
"""

from __future__ import annotations

from functools import partial

from forebay.errors import InvalidOption
from forebay.runtime.extras import extra_package
from forebay.runtime.foreign_code import replaced_errors

HUB = "hf:"


def hub_files(data: str) -> list[str]:
    """Arrow files of `hf:NAME` or `hf:NAME:SPLIT`.

    They lie in the cache of `datasets`, which downloads what is missing.

    NAME may be a local folder. The split is "train" unless it is given.

    Raises `InvalidOption` without `datasets`, and for a dataset that it cannot load.
    """
    with extra_package("datasets", f"data={data!r}"):
        import datasets  # noqa: PLC0415 - an extra, which takes seconds to import
    # Its bars would be mixed with the lines of the run.
    datasets.disable_progress_bars()
    name, _, split = data.removeprefix(HUB).partition(":")
    with replaced_errors(partial(_unloadable, data)):
        found = datasets.load_dataset(name, split=split or "train")
    return [str(file["filename"]) for file in found.cache_files]


def _unloadable(data: str, error: Exception) -> Exception:
    return InvalidOption(
        f"data={data!r} cannot be loaded ({type(error).__name__}: {error}). Give hf:NAME or hf:NAME:SPLIT of a data "
        "set of the Hugging Face Hub. Without a network, it has to be in the cache of datasets (HF_HOME).",
        data=data,
    )
