"""Prompts and rewards for reinforcement learning in trainers of others."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from forebay.data.transform.fingerprint.function import function_identity
from forebay.data.transform.fingerprint.values import canonical, digest, value_identity
from forebay.errors import InvalidOption
from forebay.llm.chat.messages import InvalidConversation
from forebay.llm.score.engines.engine import Engine, EngineSpec, Prompt, RowAnswer
from forebay.llm.score.prompts import PromptSource, find_prompt
from forebay.llm.score.source.finding import find_source
from forebay.llm.score.tasks import ScoreTask
from forebay.llm.score.verdicts import InvalidVerdict, verdict_of
from forebay.storage.filesystem import resolve

_BLOCK_ROWS = 1024
_ROW_NUMBERS = 1 << 31
_OF_TEMPLATE = ("tools", "functions", "chat_template_kwargs")
"""Columns that a chat template writes beside messages."""


def prompt_rows(data: str, *, prompt: str | None = None, keep: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """Yield the prompts of a dataset, in the order of its rows.

    Each is `{"prompt", "row"}`, with the columns of `keep`. A prompt is a text or messages, without the last answer.

    Args:
        data: Dataset, as for `llm.score.score_rows`.
        prompt: Column of the prompt. None: the first known one.
        keep: Columns that the reward function gets.

    Raises `InvalidOption` for the first row without a prompt, or with tools that `keep` leaves out, and as
    `score_rows`.
    """
    source = find_source(data)
    prompts = find_prompt(PromptSource(column=prompt), source.columns, source.name, from_arrow=source.from_arrow)
    names = tuple(dict.fromkeys((*prompts.columns(source.columns), *keep)))
    if missing := [name for name in keep if name not in source.columns]:
        raise InvalidOption(f"keep= names {missing[0]!r}, and {source.name} has {', '.join(source.columns)}.")
    reader = source.open(names, ())
    for start in range(0, source.num_rows, _BLOCK_ROWS):
        block = reader.read(start, min(start + _BLOCK_ROWS, source.num_rows))
        for at, row in enumerate(block.rows):
            error = block.errors.get(at)
            try:
                if error is not None:
                    raise InvalidConversation(error)
                found = prompts.prompt(start + at, row)
            except InvalidConversation as no_prompt:
                raise InvalidOption(f"row {start + at} of {source.name} has no prompt: {no_prompt}.") from no_prompt
            if unsaid := [name for name in _OF_TEMPLATE if row.get(name) and name not in keep]:
                raise InvalidOption(
                    f"row {start + at} of {source.name} has {unsaid[0]!r}, which is no part of its messages. Name it "
                    "in keep= for a trainer that reads such a column, or leave the column out of the data."
                )
            yield {"prompt": found.content, "row": start + at, **{name: row[name] for name in keep}}


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardCounts:
    """Counts of a reward function.

    Attributes:
        asked: Completions that the engine was asked for.
        known: Completions whose reward was there.
        errors: Completions without a reward.
    """

    asked: int = 0
    known: int = 0
    errors: int = 0


class Rewards:
    """Rewards of completions by an engine, each asked for once.

    A reward function of TRL: called with the prompts, their completions and the columns of the dataset, it returns a
    number for each, or None without one. The reward of a completion depends on its prompt, on itself and on columns
    that `ask` reads, and on no other completion. It is written down before it is returned: after a kill, a trainer
    that generates the same completions again asks for none of them twice.

    Args:
        engine: Engine of the judge, or of a model whose likelihood counts.
        task: Its task, such as `ScoreTask(kind="judge", sampling=Sampling(schema=...))`.
        ask: Function of a prompt, a completion and the row's columns, as a dictionary. It returns the engine's prompt.
        value: Function of the answer, for a judge of its verdict, that returns the reward.
        to: Local folder of the rewards.
        rank: Number of this process among those that train.

    Raises `InvalidOption` for a folder that is not local, and as the engine's `check`.
    """

    def __init__(
        self,
        *,
        engine: EngineSpec,
        task: ScoreTask,
        ask: Callable[[Any, Any, Mapping[str, Any]], Any],
        value: Callable[[Any], float],
        to: str,
        rank: int = 0,
    ) -> None:
        location = resolve(to)
        if not location.is_local:
            raise InvalidOption(f"to={to!r} is not a local folder, to which each reward is appended. Give one.")
        engine.check()
        self.__name__ = "forebay"  # by which TRL names its metrics
        self.counts = RewardCounts()
        self._spec, self._task, self._ask, self._value = engine, task, ask, value
        own: Mapping[str, Callable[..., Any]] = {"ask": ask, "value": value}
        code = {name: digest(canonical(function_identity(each, None)).encode()) for name, each in own.items()}
        self._identity = canonical(value_identity({**engine.identity(), **task.identity(), **code}))
        self._engine: Engine | None = None
        folder = Path(location.path)
        folder.mkdir(parents=True, exist_ok=True)
        self._known = {key: reward for path in sorted(folder.glob("rewards-*.jsonl")) for key, reward in _read(path)}
        self._file = folder / f"rewards-{rank}.jsonl"
        self._is_torn = self._file.exists() and not self._file.read_bytes().endswith(b"\n")

    def __call__(self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float | None]:
        # TRL also hands in values that are no columns, such as the state of the trainer.
        lists = {name: each for name, each in columns.items() if isinstance(each, list) and len(each) == len(prompts)}
        rows = [{name: each[at] for name, each in lists.items()} for at in range(len(prompts))]
        contents = [self._ask(*each) for each in zip(prompts, completions, rows, strict=True)]
        keys = [digest(f"{self._identity} {json.dumps(each, sort_keys=True)}".encode()) for each in contents]
        missing = {key: each for key, each in zip(keys, contents, strict=True) if key not in self._known}
        found = self._rewards(missing)
        rewards = [self._known.get(key) for key in keys]
        counts = self.counts
        self.counts = replace(
            counts,
            asked=counts.asked + len(missing),
            known=counts.known + len(keys) - sum(key in missing for key in keys),
            errors=counts.errors + len(missing) - len(found),
        )
        return rewards

    def close(self) -> None:
        """Close the engine, if it is open."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def _rewards(self, missing: Mapping[str, Any]) -> dict[str, float]:
        """Ask for rewards, and write those down that there are."""
        if not missing:
            return {}
        if self._engine is None:
            self._engine = self._spec.open()
        # An answer that is drawn depends on its row number: the number depends on the question.
        asked = [Prompt(row=int(key[:16], 16) % _ROW_NUMBERS, content=each) for key, each in missing.items()]
        answers = self._task.ask(self._engine, asked)
        values = {key: self._reward(answer) for key, answer in zip(missing, answers, strict=True)}
        found = {key: value for key, value in values.items() if value is not None}
        with self._file.open("a") as file:
            if self._is_torn:
                file.write("\n")
                self._is_torn = False
            file.writelines(json.dumps([key, value]) + "\n" for key, value in found.items())
            file.flush()
            os.fsync(file.fileno())
        self._known.update(found)
        return found

    def _reward(self, answer: RowAnswer) -> float | None:
        if answer.error is not None:
            return None
        schema = self._task.sampling.schema
        try:
            return float(self._value(answer if schema is None else verdict_of(answer.text or "", schema)))
        except InvalidVerdict:
            return None


def _read(path: Path) -> Iterator[tuple[str, float]]:
    """Rewards of a file. A line may be torn by a kill."""
    for line in path.read_bytes().splitlines():
        try:
            key, reward = json.loads(line)
            found = str(key), float(reward)
        except (ValueError, TypeError):
            continue
        yield found
