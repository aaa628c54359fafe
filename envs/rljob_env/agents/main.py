"""Agent process: calls a Python function with the task of an episode, for the runner that started it.

    python -m rljob_env.agents.main ROOT FUNCTION

The function gets the task and returns a reward, an object with one, or None.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import NoReturn

from rljob_env.failures import Part
from rljob_env.foreign_code.functions import CannotLoad, called, load_function
from rljob_env.results import reward_and_metrics


def main() -> None:
    """Run one episode."""
    root, name = sys.argv[1:]
    sys.path.append(root)
    result = Path(os.environ["RLJOB_RESULT"])
    task = json.loads(Path(os.environ["RLJOB_TASK"]).read_text(encoding="utf-8"))
    try:
        function = load_function(Path(root), name)
    except CannotLoad as error:
        _fail(result, str(error))
    value = called(function, task)
    if value is None:
        return  # It may have written the file itself.
    try:
        reward, metrics = reward_and_metrics(value)
    except ValueError as error:
        _fail(result, f"{name}: {error}")
    result.write_text(json.dumps({"reward": reward, "metrics": metrics}), encoding="utf-8")


def _fail(result: Path, detail: str) -> NoReturn:
    result.write_text(json.dumps({"failed": Part.ENVIRONMENT, "detail": detail}), encoding="utf-8")
    sys.exit(detail)


if __name__ == "__main__":
    main()
