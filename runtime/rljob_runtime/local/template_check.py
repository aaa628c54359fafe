"""Template check: whether agents can be served with a job's chat template, before anything is started.

A template is a program of the job's user, and may take any time. So it runs in the gateway's process, as it does in a
run, which has no credentials and ends in bounded time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from rljob_api import RLJob
from rljob_runtime.gateway.config import GatewayConfig
from rljob_runtime.gateway.kept_process import REFUSED
from rljob_runtime.local.environments import gateway_environment
from rljob_runtime.models.folder import CONFIG, TOKENIZER_FILES

CHECK_SECONDS = 60.0
"""Longest time of a check. The process imports the tokenizer's library, which takes a few seconds."""
FITS = "it fits episodes: what it wrote for earlier turns stays"


class TemplateRefused(Exception):
    """The run would end at its start. The message is the gateway's."""


def check_template(job: RLJob, model: Path | None, seconds: float = CHECK_SECONDS) -> str:
    """Return what is known of the template of a job with environments. `model`: its folder, if it is on this machine.

    Raises `TemplateRefused`.
    """
    if model is None or not (model / CONFIG).is_file() or not any((model / name).is_file() for name in TOKENIZER_FILES):
        return "not checked: the model is not on this machine yet; the run checks it at its start"
    with tempfile.TemporaryDirectory(prefix="rljob-") as folder:
        file = Path(folder) / "gateway.json"
        unused = Path(folder) / "unused"
        config = GatewayConfig.of(job, unused, unused, unused, model.absolute())
        file.write_text(json.dumps(config.model_copy(update={"parent": os.getpid()}).to_dict()), encoding="utf-8")
        line = (sys.executable, "-m", "rljob_runtime.entrypoints", "gateway", "--check", "--config", str(file))
        try:
            done = subprocess.run(
                line, env=gateway_environment(), capture_output=True, text=True, timeout=seconds, check=False
            )
        except subprocess.TimeoutExpired:
            return f"not checked: it renders no conversation within {seconds:g} s"
    said = done.stderr.strip().rpartition("\n")[2].removeprefix("gateway: ")
    if done.returncode == REFUSED:
        raise TemplateRefused(said)
    return f"not checked: {said or f'the check ended with status {done.returncode}'}" if done.returncode else FITS
