"""Facts that a resumed fine-tuning must share."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath

from forebay.errors import InvalidOption
from forebay.llm.adapters import Lora, targets_text
from forebay.llm.models import TINY
from forebay.llm.recipe import Recipe
from forebay.llm.source.folders import folder_digest
from forebay.llm.source.prepared_tokens import PreparedTokens
from forebay.runtime.uris import split_options

_DIGITS = 12


def run_identity(
    recipe: Recipe, tokens: PreparedTokens | Mapping[str, PreparedTokens], **options: object
) -> dict[str, object]:
    """Base model, adapter, data, tokenizer and template by name.

    For `fb.Job(identity=...)`.

    Reads a few samples of the model's weights. A folder that was copied or renamed is the same base.

    Args:
        recipe: The recipe.
        tokens: Token rows, or for a mixture the token rows of each dataset, by name.
        options: Options of the `TokenSource`, by name. None is left out.
    """
    several = (
        {"data": tokens}
        if isinstance(tokens, PreparedTokens)
        else {f"data {name}": each for name, each in tokens.items()}
    )
    if not several:
        raise InvalidOption("run_identity() needs the token rows of at least one dataset.")
    first = next(iter(several.values()))
    arguments = first.prepared.origin.arguments
    return {
        "model": _model(recipe),
        "adapter": _adapter(recipe.adapter),
        **({} if recipe.algorithm == "adamw" else {"optimizer": recipe.algorithm}),
        "seq_len": first.seq_len,
        "tokenizer": arguments["tokenizer"][:_DIGITS],
        "template": arguments["template"][:_DIGITS],
        **{name: value for name, value in options.items() if value is not None and name != "seq_len"},
        **{name: _data(each) for name, each in several.items()},
    }


def _model(recipe: Recipe) -> str:
    name, bits = recipe.model.name, recipe.model.quantization
    base = name if name == TINY else f"{PurePosixPath(name).name} ({folder_digest(name)[:_DIGITS]})"
    if recipe.adapter is None and recipe.weights == "bf16":
        return f"{base} in bf16"
    return f"{base} in {bits}" if bits else base


def _adapter(adapter: Lora | None) -> str:
    if adapter is None:
        return "none"
    kind = f"{'rs' if adapter.rslora else ''}{'dora' if adapter.dora else 'lora'}"
    more = f" modules_to_save={','.join(adapter.modules_to_save)}" if adapter.modules_to_save else ""
    return f"{kind} r={adapter.r} alpha={adapter.alpha:g} targets={targets_text(adapter)}{more}"


def _data(tokens: PreparedTokens) -> str:
    """Names and total size of the files.

    The plan itself checks their content.
    """
    inputs = tokens.prepared.origin.inputs
    names = sorted(PurePosixPath(split_options(uri)[0]).name for uri in inputs)
    sizes = [size for version in inputs.values() if (size := version.partition(" ")[0]).isdecimal()]
    more = "" if len(names) == 1 else f" and {len(names) - 1} more"
    total = f", {sum(map(int, sizes)):,} bytes" if len(sizes) == len(names) else ""
    return f"{names[0]}{more}{total}"
