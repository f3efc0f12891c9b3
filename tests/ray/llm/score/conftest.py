"""Fixtures of the unit tests of scoring."""

from __future__ import annotations

from tests.unit.llm.score.conftest import chats as chats
from tests.unit.llm.score.conftest import model_folder as model_folder
from tests.unit.llm.score.conftest import questions as questions
from tests.unit.llm.score.conftest import request_of as request_of
