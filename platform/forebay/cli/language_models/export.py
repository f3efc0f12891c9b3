"""`forebay export`: a checkpoint of a language model as a Hugging Face folder."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from forebay.cli.arguments import AsJson
from forebay.cli.output import print_facts, print_json
from forebay.runtime.formatting import bytes_text


def export(
    name: Annotated[str, typer.Argument(help="Name of a run that trained a language model.", metavar="RUN")],
    to: Annotated[str, typer.Option(help="Folder for the model, on any storage: new or empty.")],
    step: Annotated[
        int | None, typer.Option(help="Step of the checkpoint to export.", show_default="the newest")
    ] = None,
    merge: Annotated[bool, typer.Option("--merge", help="Add the adapter to its base model.")] = False,
    dtype: Annotated[
        str | None, typer.Option(help="fp32, bf16 or fp16.", show_default="that of the base model; fp32 for an adapter")
    ] = None,
    storage: Annotated[str, typer.Option(help="Storage of the run.")] = "runs",
    as_json: AsJson = False,
) -> None:
    """Write what a run trained as the folder of a model, for transformers and vLLM. Needs no GPU and little memory."""
    # Imported here because torch takes seconds to import and the other commands do not need it.
    from forebay.llm.hf_folder.exporting import export as export_run  # noqa: PLC0415

    made = export_run(name, to, storage=storage, step=step, merge=merge, dtype=dtype)
    facts = asdict(made)
    if as_json:
        print_json(facts)
        return
    print_facts(
        {
            "folder": made.folder,
            "run": f"{made.run}, step {made.step}",
            "content": f"{made.content}, {made.dtype}",
            "tensors": f"{made.tensors}, {bytes_text(made.num_bytes)}",
            "files": len(made.files),
            **({} if made.is_new else {"found": "it was there before"}),
        }
    )
