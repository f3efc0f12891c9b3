"""Names that weights have in the files of a base model.

Transformers renames and stacks some of them when it loads a model: the experts of a mixture, above all.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from forebay.llm.hf_folder.safetensors_files import Weight
from forebay.llm.models import INDEX, TINY, WEIGHTS, full_config
from forebay.llm.source.folders import copy_headers, small_files_of
from forebay.llm.source.hub_model import hub_model
from forebay.llm.source.tokenizers import import_transformers
from forebay.runtime.extras import extra_package


class BaseNames:
    """Parts of a weight by their names in the files of the base."""

    def __init__(self, config: Mapping[str, Any], names: frozenset[str] | None = None) -> None:
        """`names` of the files. None: the names that transformers writes."""
        self.model = skeleton_of(config)
        self._names = names
        self._last: tuple[str, dict[str, Tensor]] | None = None

    def parts(self, name: str, values: Tensor) -> dict[str, Tensor]:
        """Parts of `values`, which is a weight `name` of the model, or what is added to it."""
        if self._names is not None and name in self._names:
            return {name: values}
        from transformers.core_model_loading import (  # noqa: PLC0415 - an extra, which takes seconds to import
            revert_weight_conversion,
        )

        parts: dict[str, Tensor] = revert_weight_conversion(self.model, {name: values})
        return parts

    def split(self, weight: Weight) -> list[Weight]:
        """The same weight as the files of the base have it."""
        shapes = self.parts(weight.name, torch.empty(weight.shape, dtype=weight.dtype, device="meta"))
        if shapes.keys() == {weight.name}:
            return [weight]
        return [
            Weight(name=name, shape=tuple(each.shape), dtype=weight.dtype, read=partial(self._read, weight, name))
            for name, each in shapes.items()
        ]

    def _read(self, weight: Weight, part: str) -> Tensor:
        # Parts are read one behind the other: their whole is read once.
        if self._last is None or self._last[0] != weight.name:
            self._last = None
            self._last = (weight.name, self.parts(weight.name, weight.read()))
        return self._last[1][part]

    def of_modules(self, names: frozenset[str]) -> frozenset[str]:
        """Names in the files of some modules' weights."""
        return frozenset(part for name in names for part in self.parts(name, self.model.get_parameter(name).detach()))


def file_names(model: str) -> frozenset[str] | None:
    """Names of the weights in a model's files, read from their headers.

    None for the tiny model, and for one of the Hub, whose files may not be here.
    """
    if model == TINY or hub_model(model) is not None:
        return None
    with extra_package("safetensors", "A model in a folder of Hugging Face"):
        from safetensors import safe_open  # noqa: PLC0415 - an extra

    def named(path: Path) -> Iterator[str]:
        with safe_open(path, framework="pt") as file:
            yield from file.keys()

    with tempfile.TemporaryDirectory(prefix="forebay-headers-") as folder:
        copy_headers(small_files_of(model), Path(folder), with_weights=True)
        return frozenset(name for path in weight_files(Path(folder)) for name in named(path))


def weight_files(folder: Path) -> list[Path]:
    """Files of a model's weights that transformers loads.

    A folder may hold the same weights in another form too, such as Mistral's `consolidated.safetensors`.
    """
    if (single := folder / WEIGHTS).exists():
        return [single]
    return [folder / name for name in sorted({*json.loads((folder / INDEX).read_text())["weight_map"].values()})]


def skeleton_of(config: Mapping[str, Any]) -> Any:
    """Causal model of a configuration, without memory."""
    with torch.device("meta"):
        return import_transformers().AutoModelForCausalLM.from_config(full_config(config))
