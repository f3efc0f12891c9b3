"""`forebay init`: a job file for a dataset."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from forebay.cli.arguments import AsJson
from forebay.cli.guessed_features import GuessedFeatures, guess_features
from forebay.cli.output import print_facts, print_json, print_line, progress_bar
from forebay.data.manifest.manifest import Manifest
from forebay.data.sources.scan import scan
from forebay.errors import BadUsage, InvalidOption
from forebay.runtime.formatting import printable
from forebay.storage.filesystem import resolve

_BATCH = 1024


def init(
    uri: Annotated[
        str,
        typer.Argument(help="A dataset as for `forebay scan`: a folder, a glob, s3://, hdfs://, ...", metavar="SOURCE"),
    ],
    file: Annotated[Path, typer.Argument(help="Job file to write.", metavar="[NAME.py]")] = Path("my_job.py"),
    target: Annotated[
        str | None,
        typer.Option(
            "--target", "-t", help="Column to predict: numbers or bools.", show_default="guessed, and named in the file"
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over a file that exists.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write a job file that trains on a dataset.

    Features are guessed from the schema and the first row group. The file runs as it is, and says what to change.
    """
    if file.suffix != ".py":
        raise BadUsage(f"{file} is not the name of a Python file. Write for example my_job.py.")
    if file.exists() and not force:
        raise InvalidOption(f"{file} exists. Give another name, or --force to write over it.", path=str(file))
    with progress_bar(hidden=as_json) as bar:
        task = bar.add_task("reading footers", total=None)
        manifest = scan(uri, progress=lambda done, total: bar.update(task, completed=done, total=total))
    found = guess_features(manifest, target)
    source = uri if "://" in uri else resolve(uri).path
    try:
        file.write_text(job_text(manifest, found, source, file.name), encoding="utf-8")
    except OSError as error:
        raise InvalidOption(f"{file} cannot be written ({error.strerror}). Give another name.") from error
    if as_json:
        print_json({"file": str(file), "rows": manifest.num_rows, **asdict(found)})
        return
    left_out = [f"{name}: {why}" for name, why in found.skipped.items()]
    kinds = {"numbers": found.numbers, "ids": found.ids, "times": found.times, "lists": found.lists}
    kinds |= {"vectors": list(found.vectors), "left out": left_out}
    print_facts(
        {
            "file": file,
            "target": f"{found.target}{' (guessed: --target names another)' if found.is_guessed else ''}",
            **{kind: ", ".join(names) for kind, names in kinds.items() if names},
        }
    )
    print_line(f"next: forebay run {file}")


def job_text(manifest: Manifest, found: GuessedFeatures, source: str, name: str) -> str:
    """Text of a job file, with comments on what was guessed."""
    return "\n".join(_lines(manifest, found, source, name)) + "\n"


def _lines(manifest: Manifest, found: GuessedFeatures, source: str, name: str) -> Iterator[str]:
    is_split = len(manifest) > 1
    yield f'"""Predict a column of {manifest.num_rows:,} rows. Written by `forebay init`; change what you like.'
    yield ""
    yield f"forebay run {_comment(name)}             # on Ray, and --driver local without"
    yield f"forebay rows {_comment(name)}            # rows in the order of training"
    yield '"""'
    yield from ("", "from functools import partial", "", "import torch", "from torch import nn", "")
    yield from ("import forebay as fb", "", f"TARGET = {_text(found.target)}")
    if found.is_guessed:
        yield "# The target was guessed from names and values. It must not be among the features below."
    for kind, names in (("NUMBERS", found.numbers), ("IDS", found.ids), ("TIMES", found.times)):
        if names:
            yield f"{kind} = {_listed(names)}"
    if found.ids:
        yield "BUCKETS, DIM = 2**16, 8  # rows and width of the table that the hashed ids share"
    for column, why in found.skipped.items():
        yield f"# Left out: {_comment(repr(column))} ({_comment(why)})."
    yield from ("", "")
    yield from _job_lines(manifest, found, source, is_split=is_split)
    yield from ("", "")
    yield from _model_lines(found)
    yield from ("", "")
    yield "def train(worker: fb.Worker, lr: float) -> None:"
    criterion = "nn.BCEWithLogitsLoss()" if found.is_binary else "nn.SmoothL1Loss()"
    evaluate = ", fb.evaluate_auc" if found.is_binary and is_split else ""
    if not found.is_binary:
        yield "    # The target is taken for a number. Divide it by its usual size if the loss is large."
    yield f"    fb.fit(worker, Model(), partial(torch.optim.Adam, lr=lr), {criterion}{evaluate})"


def _job_lines(manifest: Manifest, found: GuessedFeatures, source: str, *, is_split: bool) -> Iterator[str]:
    yield "def job("
    yield f"    data: str = {_text(source)},"
    yield from (
        "    workers: int = 1,",
        "    epochs: int = 3,",
        "    lr: float = 1e-3,",
        "    name: str | None = None,",
    )
    yield ") -> fb.Job:"
    yield "    # Each parameter is one of the command line: forebay run ... epochs=10"
    where = ""
    if found.where:
        yield "    # A label is a number: rows with a null, NaN or infinity there are left out."
        where = f", where={_text(found.where)}"
    if is_split:
        yield f"    training, held_out = fb.scan(data{where}).split(0.1)"
    else:
        yield "    # The data has one row group, and a split holds out whole ones: nothing is held out."
        yield f"    training = fb.scan(data{where})"
    yield "    transform = fb.Transform("
    if found.numbers:
        yield "        numbers=fb.Dense(NUMBERS),  # float32 [rows, columns]; nulls are 0"
    if found.ids:
        yield "        ids=fb.Categorical(IDS, buckets=BUCKETS),  # [rows, columns], hashed; null is 0"
    if found.times:
        yield '        times=fb.Time(TIMES, unit="h", dtype="float64"),  # hours since 1970; null is NaN'
    for number, column in enumerate(found.lists):
        yield f"        list{number}=fb.Ragged({_text(column)}, max_len=32, buckets=2**16),  # padded with 0"
    for number, (column, size) in enumerate(found.vectors.items()):
        yield f"        vector{number}=fb.Array({_text(column)}, {size}),"
    yield "        label=fb.Label(TARGET),"
    yield "    )"
    batch = max(1, min(_BATCH, manifest.num_rows // 16))
    yield "    return fb.Job("
    yield "        train=partial(train, lr=lr),"
    yield f"        data=fb.Data(plan=fb.build_plan(training, seed=7), transform=transform, global_batch={batch}),"
    if is_split:
        plan = "fb.build_plan(held_out, shuffle=False)"
        yield f"        held_out=fb.Data(plan={plan}, transform=transform, global_batch=4096),"
    yield from ("        workers=workers,", "        epochs=epochs,", "        name=name,", "    )")


def _model_lines(found: GuessedFeatures) -> Iterator[str]:
    lists = range(len(found.lists))
    width = " + ".join(
        [
            *(["len(NUMBERS)"] if found.numbers else []),
            *(["len(IDS) * DIM"] if found.ids else []),
            *(["4 * len(TIMES)"] if found.times else []),
            *(["8"] * len(lists)),
            *map(str, found.vectors.values()),
        ]
    )
    yield "class Model(nn.Module):"
    yield "    def __init__(self) -> None:"
    yield "        super().__init__()"
    if found.ids:
        yield "        self.table = nn.Embedding(BUCKETS, DIM)"
    for number in lists:
        yield f'        self.list{number} = nn.EmbeddingBag(2**16, 8, mode="mean", padding_idx=0)'
    yield f"        width = {width}"
    yield "        hidden, last = nn.Linear(width, 64), nn.Linear(32, 1)"
    yield "        self.layers = nn.Sequential(hidden, nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), last)"
    yield ""
    yield "    def forward(self, batch: fb.Batch) -> torch.Tensor:"
    yield "        parts = []"
    if found.numbers:
        yield '        numbers = torch.nan_to_num(batch["numbers"], posinf=0.0, neginf=0.0)'
        yield "        parts.append(torch.sign(numbers) * torch.log1p(numbers.abs()))  # large and small numbers alike"
    if found.ids:
        yield '        parts.append(self.table(batch["ids"]).flatten(1))'
    if found.times:
        yield '        hours = torch.nan_to_num(batch["times"])'
        yield "        for period in (24, 168):  # hours of a day and of a week"
        yield "            angle = hours % period * (2 * torch.pi / period)"
        yield "            parts += [angle.sin().float(), angle.cos().float()]"
    for number in lists:
        yield f'        parts.append(self.list{number}(batch["list{number}"]))'
    for number in range(len(found.vectors)):
        yield f'        parts.append(torch.nan_to_num(batch["vector{number}"]))'
    yield "        return self.layers(torch.cat(parts, dim=1)).squeeze(1)"


def _listed(names: list[str]) -> str:
    """List of names, one a line where they are many."""
    texts = [_text(name) for name in names]
    short = f"[{', '.join(texts)}]"
    return short if len(short) <= 100 else "[\n" + "".join(f"    {text},\n" for text in texts) + "]"


def _text(name: str) -> str:
    """Literal of Python, as formatters write it."""
    return f'"{name}"' if name.isprintable() and not set(name) & {'"', "\\"} else repr(name)


def _comment(text: str) -> str:
    """Text on one line of a comment, which a name of a column cannot end."""
    return printable(" ".join(text.split())).replace('"""', "'''").replace("\\", "/")
