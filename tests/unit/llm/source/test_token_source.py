from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import forebay as fb
from forebay.data.parquet.reading import RowGroupReader
from forebay.errors import InvalidDocument, InvalidOption
from forebay.llm.packing import ID_BITS, TARGET
from forebay.llm.source import text_files, token_source
from forebay.llm.source.prepared_tokens import prepared_tokens
from forebay.llm.source.token_source import TokenSource
from forebay.llm.source.tokenizers import TokenizerSpec
from forebay.llm.source.tokenizers import tokenizer as tokenizer_of
from forebay.testing.data.chats import unique_chats

TINY = tokenizer_of("tiny")
LONG = " ".join(str(number * 7919) for number in range(50))


@pytest.fixture
def chats(write: Callable[..., Path]) -> Path:
    return write([{"id": number, "messages": each} for number, each in enumerate(unique_chats(120, 0))])


def answers_of(prepared: fb.Prepared) -> list[str]:
    """Targets of every row as text, by answers."""
    return answers_in(rows_of(prepared), prepared)


def answers_in(packed: np.ndarray, prepared: fb.Prepared) -> list[str]:
    """Targets of packed rows as text, by answers."""
    tokenizer = prepared_tokens(prepared).tokenizer(TINY)
    text = "".join(tokenizer.decode((row & ID_BITS)[(row & TARGET) != 0]) for row in packed)
    return sorted(text.split("<|im_end|>")[:-1])


def rows_of(prepared: fb.Prepared) -> np.ndarray:
    """Token rows in the order of the files, as a loader gives them."""
    reader = RowGroupReader(prepared.manifest)
    transform = fb.llm.token_rows()
    blocks = [transform.apply(reader.read(index)) for index in range(len(prepared.manifest))]
    return np.concatenate([block.arrays["tokens"] for block in blocks])


def test_every_answer_is_a_target_once(chats: Path, tmp_path: Path, messages: list[str]) -> None:
    prepared = fb.prepare(TokenSource(str(chats), TINY, seq_len=256), into=str(tmp_path / "into"))
    expected = [
        turn["content"]
        for line in chats.read_text().splitlines()
        for turn in json.loads(line)["messages"]
        if turn["role"] == "assistant"
    ]
    assert answers_of(prepared) == sorted(expected)
    tokens = prepared_tokens(prepared)
    assert (tokens.seq_len, tokens.packing, tokens.counts.documents) == (256, "bfd", 120)
    assert tokens.counts.fill(256) > 0.9
    assert any("120 documents in" in message for message in messages)


def test_an_epoch_of_nearly_full_rows_has_every_target_once(write: Callable[..., Path], tmp_path: Path) -> None:
    chats = unique_chats(2000, 0)
    path = write([{"messages": each} for each in chats])
    prepared = fb.prepare(TokenSource(str(path), TINY, seq_len=1024), into=str(tmp_path / "into"))
    tokens = prepared_tokens(prepared)
    assert tokens.counts.tokens / tokens.counts.documents <= 1024 / 4
    # 120 rows, where 118.7 would hold all tokens.
    assert tokens.counts.fill(1024) >= 0.985
    plan = fb.build_plan(prepared.manifest, seed=7)
    with fb.Loader(plan, fb.llm.token_rows(), None, global_batch=8, as_numpy=True) as loader:
        packed = np.concatenate([batch["tokens"].copy() for batch in loader])
    answers = [turn["content"] for messages in chats for turn in messages if turn["role"] == "assistant"]
    assert answers_in(packed, prepared) == sorted(answers)


def test_second_time_opens_no_file_and_needs_no_tokenizer(
    chats: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = TokenSource(str(chats), TINY, seq_len=256)
    first = fb.prepare(source, into=str(tmp_path / "into"))
    monkeypatch.setattr(TokenSource, "open", lambda _: pytest.fail("the source was opened"))
    again = fb.prepare(TokenSource(str(chats), TINY, seq_len=256), into=str(tmp_path / "into"))
    assert (again.folder, again.manifest.id) == (first.folder, first.manifest.id)
    assert (
        prepared_tokens(again) == prepared_tokens(first)
        or prepared_tokens(again).counts == prepared_tokens(first).counts
    )


@pytest.mark.parametrize(
    "options",
    [{"seq_len": 128}, {"packing": "none"}, {"overflow": "drop"}, {"train_on": "all"}, {"on_bad_rows": "skip"}],
)
def test_every_option_is_part_of_the_fingerprint(chats: Path, options: dict[str, Any]) -> None:
    plain = TokenSource(str(chats), TINY, seq_len=256).origin()
    assert TokenSource(str(chats), TINY, **{"seq_len": 256} | options).origin().differences(plain) == [
        f"argument {next(iter(options))}"
    ]


def test_template_and_data_are_part_of_the_fingerprint(chats: Path, write: Callable[..., Path]) -> None:
    plain = TokenSource(str(chats), TINY).origin()
    other = tokenizer_of("tiny", template="{{ messages }}")
    assert TokenSource(str(chats), other).origin().differences(plain) == ["argument template"]
    assert TokenSource(str(chats), TokenizerSpec(vocab_size=300)).origin().differences(plain) == ["argument tokenizer"]
    write([{"messages": unique_chats(1, 1)[0]}])
    assert TokenSource(str(chats), TINY).origin().differences(plain) == [f"input {chats}"]


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.variation)])
def test_spans_decide_the_rows_and_not_the_processes(
    chats: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: int
) -> None:
    monkeypatch.setattr(text_files, "SPAN_BYTES", 4000)
    prepared = fb.prepare(
        TokenSource(str(chats), TINY, seq_len=128), into=str(tmp_path / "into"), processes=processes, row_group_rows=4
    )
    assert len(prepared.files) > 4
    assert not (Path(prepared.folder) / "_spans").exists()
    # The first span alone gives the first file.
    reader = TokenSource(str(chats), TINY, seq_len=128).open()
    table, counts = reader.read(reader.spans()[0])
    first = rows_of(prepared)[: table.num_rows]
    np.testing.assert_array_equal(first, np.stack(table["tokens"].to_numpy()))
    assert counts["documents"] < 120


@pytest.mark.parametrize(
    ("rows", "options", "expected"),
    [
        ([{"text": LONG}, {"text": "cd"}], {"seq_len": 16}, {"packing": "wrapped"}),
        ([{"text": LONG}, {"text": "cd"}], {"seq_len": 16, "packing": "bfd"}, {"packing": "bfd"}),
        ([{"prompt": "a", "completion": "bcd"}] * 3, {"seq_len": 16}, {"packing": "bfd"}),
    ],
)
def test_text_and_completions(
    write: Callable[..., Path], tmp_path: Path, rows: Any, options: dict[str, Any], expected: dict[str, Any]
) -> None:
    prepared = fb.prepare(TokenSource(str(write(rows)), TINY, **options), into=str(tmp_path / "into"))
    tokens = prepared_tokens(prepared)
    assert tokens.packing == expected["packing"]
    found = answers_of(prepared)
    if "prompt" in rows[0]:
        assert found == ["bcd"] * 3
    elif tokens.packing == "wrapped":
        assert tokens.counts.truncated == 0
    else:
        assert tokens.counts.truncated == 1


def test_ids_come_with_their_tokenizer(write: Callable[..., Path], tmp_path: Path, tokenizer: Any) -> None:
    tokenizer.save_pretrained(tmp_path / "model")
    spec = tokenizer_of(str(tmp_path / "model"))
    path = write([{"input_ids": [5, 6, 7], "labels": [-100, 6, 7]}, {"input_ids": [8, 9]}])
    prepared = fb.prepare(TokenSource(str(path), spec, seq_len=8), into=str(tmp_path / "into"))
    (row,) = rows_of(prepared)
    assert (row & ID_BITS).tolist()[:5] == [5, 6, 7, 8, 9]
    assert ((row & TARGET) != 0).tolist() == [False, True, True, False, True, False, False, False]
    with pytest.raises(InvalidOption, match="a tokenizer is trained on text"):
        TokenSource(str(path), TINY).open()
    bad = write([{"input_ids": [5, 1 << 22]}], "bad.jsonl")
    with pytest.raises(InvalidDocument, match=r"bad\.jsonl, line 1: .*give the tokenizer that made them"):
        fb.prepare(TokenSource(str(bad), spec, seq_len=8), into=str(tmp_path / "into"))


def test_rows_that_are_not_valid_are_an_error_or_counted(write: Callable[..., Path], tmp_path: Path) -> None:
    good = unique_chats(4, 0)
    path = write([{"messages": good[0]}, {"messages": []}, *({"messages": each} for each in good[1:])])
    with pytest.raises(InvalidDocument, match=r"data.jsonl, line 2: the messages are \[\], not .* on_bad_rows='skip'"):
        fb.prepare(TokenSource(str(path), TINY), into=str(tmp_path / "into"))
    prepared = fb.prepare(TokenSource(str(path), TINY, on_bad_rows="skip"), into=str(tmp_path / "into"))
    assert prepared_tokens(prepared).counts.skipped == 1
    assert prepared_tokens(prepared).counts.documents == 4


def test_nothing_to_train_on_is_explained(chats: Path, tmp_path: Path) -> None:
    source = TokenSource(str(chats), TINY, seq_len=8, overflow="drop")
    with pytest.raises(
        InvalidOption, match=r"seq_len=8, overflow='drop'.* 120 are too long, .*the longest has \d+ tok"
    ):
        fb.prepare(source, into=str(tmp_path / "into"))


def test_data_without_a_valid_row_is_not_too_long(write: Callable[..., Path], tmp_path: Path) -> None:
    source = TokenSource(str(write([{"messages": []}, {"messages": None}])), TINY, on_bad_rows="skip")
    with pytest.raises(InvalidOption, match="none of the 2 rows of the data is valid. Set on_bad_rows='raise'"):
        fb.prepare(source, into=str(tmp_path / "into"))


def test_messages_need_a_template(chats: Path, tmp_path: Path, tokenizer: Any) -> None:
    tokenizer.save_pretrained(tmp_path / "model")
    (tmp_path / "model" / "chat_template.jinja").unlink()
    spec = tokenizer_of(str(tmp_path / "model"))
    with pytest.raises(InvalidOption, match=r'has messages, and .* no chat template. Give .*template="chatml"'):
        TokenSource(str(chats), spec).open()
    assert TokenSource(str(chats), tokenizer_of(str(tmp_path / "model"), template="chatml")).open()


def test_options_that_cannot_work(chats: Path, tmp_path: Path) -> None:
    for options, text in (({"train_on": "x"}, "train_on='x'"), ({"on_bad_rows": "x"}, "on_bad_rows='x'")):
        with pytest.raises(InvalidOption, match=text):
            TokenSource(str(chats), TINY, **options)
    with pytest.raises(InvalidOption, match="key= is for functions that yield tables"):
        fb.prepare(TokenSource(str(chats), TINY), into=str(tmp_path), key="id")
    with pytest.raises(InvalidOption, match="seq_len= is not an option of a source"):
        fb.prepare(TokenSource(str(chats), TINY), into=str(tmp_path), seq_len=3)
    with pytest.raises(InvalidOption, match=r"Give llm.tokenizer\(model\)"):
        TokenSource(str(chats), "tiny")  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="holds no token rows"):
        prepared_tokens(fb.prepare(a_table, into=str(tmp_path), inputs=[]))


def a_table() -> Any:
    import pyarrow as pa

    return pa.table({"a": [1]})


def test_span_bytes_are_part_of_the_version() -> None:
    """Another size of spans packs other documents with each other: raise `VERSION` with it."""
    assert (token_source.VERSION, text_files.SPAN_BYTES) == (4, 16 << 20)
