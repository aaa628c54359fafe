"""The guide's table of parameters says what the gateway does with each."""

from __future__ import annotations

import re

import pytest
import yaml

from rljob_runtime.gateway.errors import GatewayError
from rljob_runtime.gateway.wire.chat_request import IGNORED_SAMPLING, KNOWN, WITHOUT_EFFECT, parse_chat_request
from tests.support.paths import ROOT

GUIDE = ROOT / "docs" / "guides" / "bring-your-own-agent.md"
ROW = re.compile(r"^\| (`.*`) \| (taken|recorded and ignored|refused)[ .:,|]", re.MULTILINE)


def rows(kind: str) -> list[str]:
    """Return the parameters of one kind, some with a value."""
    _, _, section = GUIDE.read_text().partition("### What the model's API takes")
    found = ROW.findall(section.partition("\n### ")[0])
    return [one for names, told in found if told == kind for one in re.findall(r"`([^`]*)`", names)]


def test_the_guide_tells_all_parameters_and_what_is_ignored() -> None:
    taken, ignored = {one.partition(":")[0] for one in rows("taken")}, set(rows("recorded and ignored"))
    assert ignored == IGNORED_SAMPLING | WITHOUT_EFFECT
    assert taken | ignored == KNOWN
    assert not taken & ignored


@pytest.mark.parametrize("text", [one for one in rows("taken") if ":" in one])
def test_what_the_guide_calls_taken_is_taken(text: str) -> None:
    assert parse_chat_request({"messages": [{"role": "user", "content": "x"}], **yaml.safe_load(text)})


@pytest.mark.parametrize("text", rows("refused"))
def test_what_the_guide_calls_refused_is_refused(text: str) -> None:
    given = yaml.safe_load(text)
    with pytest.raises(GatewayError) as caught:
        parse_chat_request({"messages": [{"role": "user", "content": "x"}], **given})
    assert caught.value.status == 400
    assert str(caught.value.param).startswith(next(iter(given)))
