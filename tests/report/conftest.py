"""The command line, as the tests of the other verbs have it."""

from tests.cli.conftest import command, edgeloop, project

__all__ = ["command", "edgeloop", "project"]
