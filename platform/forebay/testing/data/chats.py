"""Made-up conversations to fine-tune on.

Each answer is a function of its question, so exact matches can be counted.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from forebay.errors import InvalidOption
from forebay.storage.atomic import write_atomically

NOUNS = (
    *("ant", "bee", "cat", "dog", "elk", "fox", "hen", "owl", "pig", "ram", "bat", "cow"),
    *("sun", "moon", "star", "rain", "snow", "wind", "tree", "leaf", "rose", "fern", "moss", "reed"),
)
LARGEST_SUMMAND = 9
_MOST_TURNS = 3
_MOST_NOUNS = 3

Message = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatFiles:
    """JSON Lines files of conversations: `training` and `held_out`.

    A row is `{"id", "messages"}`.
    """

    training: Path
    held_out: Path


def write_chats(folder: str | os.PathLike[str], *, chats: int = 4000, held_out: int = 256, seed: int = 0) -> ChatFiles:
    """Write made-up conversations to a folder, as JSON Lines.

    Files that are there already are kept.

    The names of the files hold the arguments, and the bytes depend on the arguments alone. No row of the held-out file
    is a row of the other one. Raises `InvalidOption` for sizes below 1, `OSError` if a file cannot be written.
    """
    for option, value in (("chats", chats), ("held_out", held_out)):
        if value < 1:
            raise InvalidOption(f"write_chats({option}={value}): give at least 1.", option=option)
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    name = f"{chats}-{held_out}-{seed}.jsonl"
    files = ChatFiles(training=target / f"training-{name}", held_out=target / f"held-out-{name}")
    if not (files.training.exists() and files.held_out.exists()):
        rows = unique_chats(chats + held_out, seed)
        write_atomically(str(files.held_out), _lines(rows[:held_out]))
        write_atomically(str(files.training), _lines(rows[held_out:]))
    return files


def write_pairs(folder: str | os.PathLike[str], *, pairs: int = 2000, held_out: int = 128, seed: int = 0) -> ChatFiles:
    """Write pairs of answers to a folder, as JSON Lines.

    A row is `{"prompt", "chosen", "rejected"}`. The chosen answer is right. The other answer is right for another
    question. Files that are there already are kept. Raises as `write_chats`.
    """
    return _write_pairs("pairs", lambda pair: [pair], folder, pairs, held_out, seed)


def write_labels(folder: str | os.PathLike[str], *, pairs: int = 2000, held_out: int = 128, seed: int = 0) -> ChatFiles:
    """Write answers with labels to a folder, as JSON Lines.

    A row is `{"prompt", "completion", "label"}`, two for each pair of `write_pairs`: the label of the chosen one is
    true. Files that are there already are kept. Raises as `write_chats`.
    """
    return _write_pairs("labels", _labeled, folder, pairs, held_out, seed)


def _write_pairs(
    what: str,
    rows_of: Callable[[dict[str, object]], Sequence[dict[str, object]]],
    folder: str | os.PathLike[str],
    pairs: int,
    held_out: int,
    seed: int,
) -> ChatFiles:
    for option, value in (("pairs", pairs), ("held_out", held_out)):
        if value < 1:
            raise InvalidOption(f"write_{what}({option}={value}): give at least 1.", option=option)
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    name = f"{pairs}-{held_out}-{seed}.jsonl"
    files = ChatFiles(training=target / f"{what}-{name}", held_out=target / f"held-out-{what}-{name}")
    if not (files.training.exists() and files.held_out.exists()):
        chats = unique_chats(pairs + held_out + 1, seed)
        made = [_pair(messages, other) for messages, other in pairwise(chats)]
        for file, some in ((files.held_out, made[:held_out]), (files.training, made[held_out:])):
            lines = [json.dumps(row) + "\n" for pair in some for row in rows_of(pair)]
            write_atomically(str(file), "".join(lines).encode())
    return files


def _labeled(pair: dict[str, object]) -> list[dict[str, object]]:
    labels = {"chosen": True, "rejected": False}
    return [{"prompt": pair["prompt"], "completion": pair[name], "label": label} for name, label in labels.items()]


def _pair(messages: Sequence[Message], other: Sequence[Message]) -> dict[str, object]:
    right, wrong = messages[-1]["content"], other[-1]["content"]
    return {"prompt": messages[:-1], "chosen": right, "rejected": wrong if wrong != right else f"{wrong},{wrong}"}


def unique_chats(count: int, seed: int) -> list[list[Message]]:
    """`count` conversations, all different."""
    found: dict[str, list[Message]] = {}
    for messages in made_up_chats(seed):
        found.setdefault(json.dumps(messages), messages)
        if len(found) == count:
            return list(found.values())
    raise AssertionError("made_up_chats has no end")


def made_up_chats(seed: int) -> Iterator[list[Message]]:
    """Endless made-up conversations.

    Each has 1 to 3 questions with their answers. A third of them begin with a system message.
    """
    rng = np.random.default_rng(seed)
    while True:
        messages: list[Message] = []
        if rng.integers(3) == 0:
            messages.append({"role": "system", "content": "Answer briefly."})
        for _ in range(rng.integers(1, _MOST_TURNS + 1)):
            question = _QUESTIONS[int(rng.integers(len(_QUESTIONS)))](rng)
            messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer(question)}]
        yield messages


def answer(question: str) -> str:
    """The right answer.

    >>> answer("Copy (fox,sun)"), answer("Reverse (fox,sun)")
    ('fox,sun', 'sun,fox')
    >>> answer("Add (3,9)"), answer("In (1=fox,2=sun) find (2)")
    ('12', 'sun')

    Raises `InvalidOption` for a question of another form.
    """
    if found := re.fullmatch(r"Copy \((.+)\)", question):
        return found[1]
    if found := re.fullmatch(r"Reverse \((.+)\)", question):
        return ",".join(reversed(found[1].split(",")))
    if found := re.fullmatch(r"Add \((\d+),(\d+)\)", question):
        return str(int(found[1]) + int(found[2]))
    if found := re.fullmatch(r"In \((.+)\) find \((\w+)\)", question):
        return dict(fact.split("=") for fact in found[1].split(","))[found[2]]
    raise InvalidOption(f"{question!r} is not a question of the made-up conversations.")


# In parentheses, so that a byte-level tokenizer has the same token for a noun in the question and in the answer. With
# a space before it, it would be another token, and a small model needs twice the steps.
def _nouns(rng: np.random.Generator) -> list[str]:
    count = int(rng.integers(2, _MOST_NOUNS + 1))
    return [NOUNS[index] for index in rng.permutation(len(NOUNS))[:count]]


def _copy(rng: np.random.Generator) -> str:
    return f"Copy ({','.join(_nouns(rng))})"


def _reverse(rng: np.random.Generator) -> str:
    return f"Reverse ({','.join(_nouns(rng))})"


def _add(rng: np.random.Generator) -> str:
    first, second = rng.integers(0, LARGEST_SUMMAND + 1, 2)
    return f"Add ({first},{second})"


# Keys in order. A small model does not learn to look random keys up in the minutes of a test: it guesses one of the
# values, and half of its answers are wrong.
def _look_up(rng: np.random.Generator) -> str:
    nouns = _nouns(rng)
    facts = ",".join(f"{number}={noun}" for number, noun in enumerate(nouns, start=1))
    return f"In ({facts}) find ({rng.integers(len(nouns)) + 1})"


_QUESTIONS: Sequence[Callable[[np.random.Generator], str]] = (_copy, _reverse, _add, _look_up)


def _lines(rows: Sequence[Sequence[Message]]) -> bytes:
    return b"".join(
        json.dumps({"id": number, "messages": messages}).encode() + b"\n" for number, messages in enumerate(rows)
    )
