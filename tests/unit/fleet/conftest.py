"""The command, as in the tests of the command line."""

from tests.unit.cli.conftest import forebay as forebay
