"""The chat template of a job with environments is checked before a run, in the gateway's process."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rljob_runtime.local.template_check import FITS, TemplateRefused, check_template
from tests.support.gateway.light_tokenizer import STRIPS_THINKING
from tests.support.gateway.toy_site import toy_files
from tests.support.local_agents import job

SECONDS = 240.0
"""The process imports transformers."""


@pytest.mark.slow  # the next two represent it: the status of a process, and a process that reads a model
def test_a_template_that_appends_is_told(tmp_path: Path) -> None:
    assert check_template(job(), toy_files(tmp_path), SECONDS) == FITS


@pytest.mark.parametrize(("line", "told"), [("exit 0", FITS), ("echo why >&2; exit 1", "not checked: why")])
def test_what_is_told_is_the_end_of_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, told: str
) -> None:
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\n{line}\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    assert check_template(job(), toy_files(tmp_path), SECONDS) == told


def test_a_template_that_is_not_append_only_is_refused_with_its_reason(tmp_path: Path) -> None:
    with pytest.raises(
        TemplateRefused,
        match=r"^TemplateNotAppendOnly: spec.data.chatTemplate: .* changes earlier",
    ):
        check_template(job(), toy_files(tmp_path, STRIPS_THINKING), SECONDS)


def test_a_template_that_takes_too_long_ends_with_its_process(tmp_path: Path) -> None:
    endless = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    assert check_template(job(), toy_files(tmp_path, endless), 1.0) == (
        "not checked: it renders no conversation within 1 s"
    )


def test_a_model_that_is_absent_is_told(tmp_path: Path) -> None:
    said = "not checked: the model is not on this machine yet; the run checks it at its start"
    assert check_template(job(), None) == check_template(job(), tmp_path) == said
