"""Bad input of the language model job.

The command line finds it before a worker starts, and says what was found.
"""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import transformers

from forebay import llm
from forebay.cli.app import main
from forebay.testing.data.chats import write_chats
from forebay.testing.data.mixtures import mixture
from forebay.training.driver.local.driver import LocalDriver
from forebay.training.runs import run as run_module

JOB = Path(__file__).parents[3] / "jobs" / "finetune_llm.py"
OPTIONS = {
    "chats": 20,
    "seq_len": 128,
    "overflow": "split",
    "epochs": 1,
    "workers": 1,
    "global_batch": 8,
    "cache": "cache",
}
USER = {"role": "user", "content": "a"}
ANSWER = {"role": "assistant", "content": "b"}


class NoWorkers(AssertionError):
    """A worker would start now."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with data and a model, which no test changes."""
    folder = tmp_path_factory.mktemp("made")
    chats = write_chats(folder, chats=20, held_out=2)
    reader = llm.TokenSource(str(chats.training), llm.tokenizer("tiny")).open()
    reader.tokenizer.save_pretrained(folder / "model")
    llm.ModelSpec(name="tiny", vocab_size=len(reader.tokenizer)).build().save_pretrained(folder / "model")
    chats.training.rename(folder / "chats.jsonl")
    return folder


@pytest.fixture
def refusal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., str | None]:
    """Function `refusal(**parameters)`: the error of `forebay run`.

    None if workers would have started.
    """
    monkeypatch.chdir(tmp_path)

    def no_workers(_self: Any, job: Any, callbacks: Any = ()) -> Any:
        with run_module.Run(job, callbacks):
            raise NoWorkers

    monkeypatch.setattr(LocalDriver, "run", no_workers)

    def call(**parameters: object) -> str | None:
        words = [f"{name}={value}" for name, value in (OPTIONS | parameters).items()]
        capsys.readouterr()
        try:
            main(["run", "--driver", "local", str(JOB), *words])
        except NoWorkers:
            return None
        except SystemExit:
            pass
        return " ".join(capsys.readouterr().err.split())

    return call


def lines(path: Path, *rows: object) -> Path:
    path.write_bytes(b"".join((row if isinstance(row, bytes) else json.dumps(row).encode()) + b"\n" for row in rows))
    return path


BAD_ROWS: Mapping[str, tuple[object, str]] = {
    "no list": ({"messages": "hello"}, "bad.jsonl, line 2: .*'hello'"),
    "unknown role": ({"messages": [USER, {"role": "robot", "content": "b"}]}, "line 2: .*'robot'"),
    "assistant first": ({"messages": [ANSWER, USER]}, "line 2: .*assistant"),
    "assistant never": ({"messages": [USER]}, "line 2: .*assistant"),
    "empty": ({"messages": [USER, {"role": "assistant", "content": ""}]}, "line 2: "),
    "null": ({"messages": [USER, {"role": "assistant", "content": None}]}, "line 2: .*None"),
    "not JSON": (b'{"messages": [', "line 2: the line is not JSON"),
    "not UTF-8": (b'{"messages": "\xff"}', "line 2: the line is not UTF-8"),
    "two schemas": ({"text": "abc"}, "line 2: the row has the columns 'text', without 'messages'"),
}


@pytest.fixture(scope="module")
def mixtures(made: Path) -> Path:
    """Folder of two mixtures of experts, with the tokenizer of the model."""
    for kind in ("mixtral", "glm4_moe"):
        shutil.copytree(made / "model", made / kind, ignore=shutil.ignore_patterns("*.safetensors", "config.json"))
        size = json.loads((made / "model" / "config.json").read_text())["vocab_size"]
        config = mixture(kind, vocab_size=size, max_position_embeddings=512)
        transformers.AutoModelForCausalLM.from_config(config).save_pretrained(made / kind)
    return made


@pytest.mark.parametrize(
    ("kind", "options", "text"),
    [
        (
            "mixtral",
            {"finetuning": "qlora", "lora_targets": "all-linear,experts"},
            "'experts.gate_up_proj' is held in 4",
        ),
        ("mixtral", {"finetuning": "lora", "lora_targets": "experts", "lora_dropout": 0.1}, "peft has no dropout"),
        (
            "mixtral",
            {"finetuning": "lora", "lora_targets": "experts", "strategy": "zero3", "workers": 2},
            "a rank has a part with strategy='zero3'",
        ),
        ("glm4_moe", {"finetuning": "lora", "lora_targets": "gate_proj"}, "Name the layer's weight"),
        ("glm4_moe", {"router_aux_loss_coef": 0.01}, "transformers has no such loss for Glm4MoeForCausalLM"),
        ("mixtral", {"router_aux_loss_coef": -1}, "router_aux_loss_coef=-1.0 cannot train"),
        ("mixtral", {"router_aux_loss_coef": 0.01, "finetuning": "lora"}, None),
    ],
)
def test_mixtures_that_cannot_be_trained_so(
    refusal: Callable[..., Any], mixtures: Path, kind: str, options: dict[str, Any], text: str | None
) -> None:
    found = refusal(model=mixtures / kind, data=mixtures / "chats.jsonl", **options)
    assert found is None if text is None else text in found


@pytest.mark.parametrize("kind", BAD_ROWS)
def test_a_bad_row_is_named_by_file_and_line(refusal: Callable[..., Any], tmp_path: Path, kind: str) -> None:
    row, text = BAD_ROWS[kind]
    data = lines(tmp_path / "bad.jsonl", {"messages": [USER, ANSWER]}, row)
    assert re.search(text + ".*on_bad_rows='skip'" if "the line" not in text else text, refusal(data=data))
    assert refusal(data=data, on_bad_rows="skip") is None


FORGETFUL = (
    "{% for message in messages %}{% if message['role'] == 'user' or loop.last %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endif %}{% endfor %}"
)
"""Template that leaves earlier answers out."""
LONG = " ".join(map(str, range(400)))


@pytest.mark.parametrize(
    ("rows", "options", "text"),
    [
        (
            [{"prompt": "a", "completion": LONG}] * 3,
            {"seq_len": 16, "overflow": "drop"},
            r"seq_len=16.*3 are too long.*the longest has [\d,]+ tokens, the median of the first 3 has [\d,]+. Raise",
        ),
        (
            [{"prompt": LONG, "completion": "b"}],
            {"seq_len": 16, "overflow": "truncate"},
            r"1 have no target within a row.*longest has [\d,]+ tokens, the median",
        ),
        ([{"body": "abc"}], {}, r"has the columns 'body', and needs one of: .*messages, .*columns="),
        ([{"text": "ab " * 90}], {"seq_len": 8192}, r"seq_len=8192, and the model tiny has 4096 positions"),
        ([{"text": "ab " * 90}], {"workers": 9, "global_batch": 8}, r"global_batch=8.*9"),
        (
            [{"text": "ab " * 90}],
            {"finetuning": "lora", "lora_targets": "query,key"},
            r"lora_targets=query,key: 'query' matches no layer .* linear layers are .*q_proj",
        ),
    ],
    ids=["too long", "no target", "columns", "positions", "batch", "adapter"],
)
def test_data_that_cannot_be_trained_on(
    refusal: Callable[..., Any], tmp_path: Path, rows: Any, options: dict[str, Any], text: str
) -> None:
    assert re.search(text, refusal(data=lines(tmp_path / "some.jsonl", *rows), **options))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"offload": "optimizer"}, "offload='optimizer' needs strategy='zero1', 'zero2' or 'zero3'"),
        ({"strategy": "fsdp2", "reduction": "exact"}, "reduction='exact' needs whole gradients.*strategy='ddp'"),
        ({"strategy": "zero3"}, "strategy='zero3' needs the package deepspeed.*Run: pip install"),
        (
            {"device_memory": "6MB"},
            r"needs [\d.]+ MiB on each of 1 workers: weights .* The smallest change that fits: per_device_batch=1.",
        ),
        ({"loss_kernel": "liger"}, "loss_kernel='liger' runs on GPUs only, and this machine has none. Set gpus=1"),
        ({"context_parallel": 2}, "context_parallel=2 cannot divide workers=1. Set workers to a multiple of it"),
        ({"context_parallel": 2, "workers": 3}, "context_parallel=2 cannot divide workers=3"),
        ({"context_parallel": 2, "workers": 4, "min_workers": 1}, "cannot divide min_workers=1 and workers=4"),
        ({"context_parallel": 3, "workers": 3}, "context_parallel=3 cannot divide 4 attention heads"),
        ({"context_parallel": 2, "workers": 2, "seq_len": 127}, "rows of seq_len=127 tokens. Set seq_len to a mult"),
        ({"context_parallel": 2, "workers": 2, "strategy": "zero2"}, "needs strategy='ddp' or 'fsdp2' and reduction"),
        ({"context_parallel": 2, "workers": 2, "reduction": "exact"}, "and they are 'ddp' and 'exact'"),
        ({"context_parallel": 2, "workers": 2, "attn": "sdpa"}, "does not work with attn='sdpa'"),
        ({"context_parallel": 2, "workers": 2, "compile": True}, "does not work with compile=True"),
    ],
    ids=["offload", "exact", "deepspeed", "memory", *("context" for _ in range(9)), "liger"],
)
def test_options_that_cannot_work(
    refusal: Callable[..., Any], made: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], text: str
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda *_: None)
    assert re.search(text, refusal(data=made / "chats.jsonl", **options))


def test_template_that_forgets_turns_is_refused_with_both_remedies(
    refusal: Callable[..., Any], made: Path, tmp_path: Path
) -> None:
    model = shutil.copytree(made / "model", tmp_path / "model")
    (model / "chat_template.jinja").write_text(FORGETFUL)
    data = lines(tmp_path / "turns.jsonl", {"messages": [USER, ANSWER, USER, ANSWER]})
    said = refusal(model=model, data=data)
    assert 'Set train_on="all", or give template= with {% generation %} marks' in said
    assert refusal(model=model, data=data, train_on="all") is None


def test_more_workers_than_lanes(refusal: Callable[..., Any], made: Path) -> None:
    found = refusal(data=made / "chats.jsonl", workers=2000, global_batch=4000)
    assert re.search(r"2,?000.*lanes", found)


@pytest.mark.parametrize(
    ("break_it", "text"),
    [
        (lambda model: (model / "config.json").unlink(), "is not the folder of a model: it holds"),
        (
            lambda model: (model / "model.safetensors").rename(model / "pytorch_model.bin"),
            "is a pickle, which may run any",
        ),
        (
            lambda model: (model / "model.safetensors.index.json").write_text('{"weight_map": {"a": "b.safetensors"}}'),
            "lacks b.safetensors of its weights",
        ),
        (lambda model: change(model, "config.json", auto_map={"AutoModel": "x.y"}), "brings code of its own"),
        (lambda model: change(model, "config.json", vocab_size=8), "entries, and the model .* has embeddings for 8"),
        (lambda model: (model / "chat_template.jinja").unlink(), "no chat template. Give"),
        (lambda model: change(model, "tokenizer_config.json", eos_token=None), "has no end token"),
        (lambda model: (model / "tokenizer.json").unlink(), "has no tokenizer: it needs tokenizer.json"),
        (shutil.rmtree, "is not a folder|does not exist|has no tokenizer"),
    ],
)
def test_a_model_that_cannot_be_used(
    refusal: Callable[..., Any], made: Path, tmp_path: Path, break_it: Callable[[Path], object], text: str
) -> None:
    model = shutil.copytree(made / "model", tmp_path / "model")
    break_it(model)
    assert re.search(text, refusal(model=model, data=made / "chats.jsonl"))


def change(model: Path, name: str, **facts: object) -> None:
    path = model / name
    path.write_text(json.dumps(json.loads(path.read_text()) | facts))


def test_a_resumed_run_shares_base_adapter_data_and_rows(
    refusal: Callable[..., Any], made: Path, tmp_path: Path
) -> None:
    model = shutil.copytree(made / "model", tmp_path / "model")
    usual = {"name": "mine", "model": model, "data": made / "chats.jsonl", "finetuning": "lora", "lora_r": 4}
    assert refusal(**usual) is None
    for options, text in (
        ({"lora_r": 8}, r"begun with adapter = lora r=4 .* this job has adapter = lora r=8 .*Set adapter back"),
        ({"finetuning": "full", "lora_r": 16}, r"adapter = lora r=4 .* this job has adapter = none"),
        ({"finetuning": "qlora"}, r"begun with model = model \(\w+\), and this job has model = model \(\w+\) in nf4"),
        ({"seq_len": 64}, r"begun with seq_len = 128, and this job has seq_len = 64"),
        ({"template": "chatml"}, r"begun with template = \w{12}, and this job has template = \w{12}"),
        ({"train_on": "last"}, r"begun with train_on = assistant, and this job has train_on = last"),
        (
            {"data": lines(tmp_path / "other.jsonl", {"messages": [USER, ANSWER]})},
            r"begun with data = chats.jsonl, [\d,]+ bytes, and this job has data = other.jsonl, [\d,]+ bytes",
        ),
    ):
        assert re.search(text, refusal(**usual | options)), options
    other = llm.ModelSpec(name="tiny", vocab_size=llm.models.read_config(str(model))["vocab_size"]).build()
    other.save_pretrained(model)
    assert re.search(r"begun with model = model \(\w+\), and this job has model = model \(\w+\)", refusal(**usual))
    # A copy elsewhere is the same base, and the number of workers is free.
    copy = shutil.copytree(made / "model", tmp_path / "elsewhere" / "model")
    assert refusal(**usual | {"model": copy, "workers": 2}) is None
