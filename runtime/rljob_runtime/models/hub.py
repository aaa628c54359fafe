"""Hub: downloads repositories of the Hugging Face hub once, and says why one cannot be had."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

LONGEST_REASON = 300
"""Characters of an error of the hub's library."""


class HubError(Exception):
    """The repository cannot be had. The message says why, and what would be right."""


def snapshot(
    name: str, cache_dir: Path, kind: Literal["model", "dataset"] = "model", files: Sequence[str] | None = None
) -> Path:
    """Return the folder of the repository `name`, with the files that match patterns `files` (None: all).

    It is downloaded below `cache_dir` once. Raises `HubError`.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    patterns = list(files) if files is not None else None
    try:
        return Path(snapshot_download(name, repo_type=kind, cache_dir=cache_dir / "hub", allow_patterns=patterns))
    except HFValidationError as error:
        raise HubError(f"{_one_line(error)}; hf://ORG/NAME would be right") from error
    except LocalEntryNotFoundError as error:
        cure = "a folder, or a volume that holds it, would do"
        raise HubError(f"not in the cache, and the hub cannot be reached; {cure}") from error
    except (HfHubHTTPError, OSError) as error:
        raise HubError(f"the hub refused: {_one_line(error)}") from error


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:LONGEST_REASON] or type(error).__name__
