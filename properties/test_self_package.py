"""The package's names and the contract's ids: what others write down."""

from __future__ import annotations

import sys

import pytest

from .. import __name__ as package
from ..contract import CONTRACT


def test_a_name_is_looked_up_once_and_kept() -> None:
    kvcore = sys.modules[package]
    vars(kvcore).pop("Req", None)
    req = kvcore.Req
    assert vars(kvcore)["Req"] is req


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'kvcore' has no attribute 'Request'"):
        _ = sys.modules[package].Request


def test_the_clauses_are_numbered_from_1_on() -> None:
    assert list(CONTRACT) == [f"KV-{number}" for number in range(1, len(CONTRACT) + 1)]
    assert all(clause.id == name for name, clause in CONTRACT.items())
