"""Canary secrets in a job are refused, and never repeated.

Every part that can hold a secret has one.
"""

from __future__ import annotations

from typing import Any

import pytest

import forebay as fb
from forebay.errors import InvalidJobSpec

CANARY = "k4n4ry0123456789abcdef"


def job(storage: str = "s3://lake/runs", command: tuple[str, ...] = (), args: Any = None, **launch: Any) -> fb.JobSpec:
    task = fb.fleet.Task(command=command) if command else fb.fleet.Task(run="a.py", args=args or {})
    return fb.JobSpec(name="ctr", storage=storage, task=(task,), launch=fb.fleet.Launch(**launch))


@pytest.mark.parametrize(
    ("facts", "instead"),
    [
        ({"env": {"DB_PASSWORD": CANARY}}, 'secret_env = {DB_PASSWORD = "SECRET/KEY"}'),
        ({"env": {"DATABASE": f"postgres://me:{CANARY}@host/db"}}, "launch.secret_env"),
        ({"env": {"NOTE": f"sk-{CANARY}"}}, "launch.secret_env"),
        ({"secret_env": {"HF_TOKEN": CANARY}}, 'Write "NAME/KEY" of a Secret'),
        ({"args": {"api_key": CANARY}}, 'secret_env = {API_KEY = "SECRET/KEY"}'),
        ({"args": {"data": f"s3://key:{CANARY}@lake/clicks"}}, "launch.secret_env"),
        ({"args": {"data": [f"s3://lake/clicks?secret_key={CANARY}"]}}, "launch.secret_env"),
        ({"args": {"note": f"ghp_{CANARY}"}}, "launch.secret_env"),
        ({"storage": f"s3://key:{CANARY}@lake/runs"}, "launch.secret_env"),
        ({"storage": f"s3://lake/runs?session_token={CANARY}"}, "launch.secret_env"),
        ({"setup": f"export HF_TOKEN={CANARY}"}, 'Write $HF_TOKEN there, and secret_env = {HF_TOKEN = "SECRET/KEY"}'),
        ({"setup": f"HF_TOKEN='{CANARY}' python login.py"}, 'secret_env = {HF_TOKEN = "SECRET/KEY"}'),
        ({"setup": f"aws configure --secret-access-key {CANARY}; true"}, "$SECRET_ACCESS_KEY"),
        ({"setup": f'curl -H "Authorization: Bearer {CANARY}" https://x'}, "$API_TOKEN"),
        ({"setup": f"curl https://me:{CANARY}@host/x"}, "launch.secret_env"),
        ({"command": ("login", "--password", CANARY)}, 'secret_env = {PASSWORD = "SECRET/KEY"}'),
        ({"command": ("login", f"--api-key={CANARY}")}, 'secret_env = {API_KEY = "SECRET/KEY"}'),
        ({"command": ("sh", "-c", f"export A=1 DB_PASSWORD={CANARY}; x")}, 'secret_env = {DB_PASSWORD = "SECRET/KEY"}'),
        ({"command": ("curl", "-H", f"Authorization: Basic {CANARY}")}, "$API_TOKEN"),
        ({"command": ("fetch", f"hdfs://me:{CANARY}@nn/x")}, "launch.secret_env"),
        ({"image": f"https://me:{CANARY}@registry/forebay"}, "launch.secret_env"),
    ],
)
def test_a_secret_is_refused_with_what_to_write_instead(facts: dict[str, Any], instead: str) -> None:
    with pytest.raises(InvalidJobSpec) as error:
        job(**facts)
    assert instead in str(error.value)
    shown = [repr(error.value), repr(vars(error.value)), repr(error.value.__cause__), repr(error.value.__context__)]
    assert not any(CANARY in text for text in shown)


@pytest.mark.parametrize(
    "facts",
    [
        {"setup": 'export HF_TOKEN=$OTHER_TOKEN; login --token "$HF_TOKEN" --token-file /secrets/krb/token'},
        {"setup": "export MAX_TOKENS=4096000000 KEYTAB=/secrets/krb/keytab-of-a-user"},
        {
            "command": (
                "train",
                "--token-type",
                "documents",
                "--eos-token",
                "<|endoftext|>",
                "--tokenizer=sentencepiece",
            )
        },
        {"args": {"eos_token": "<|endoftext|>", "tokens": 4096}},
    ],
)
def test_references_and_names_about_tokens_are_no_secrets(facts: dict[str, Any]) -> None:
    job(**facts)
