"""The policies of the platform guide: a namespace that denies every connection, and what a job needs there."""

from __future__ import annotations

import re
import urllib.parse
from typing import Any

import yaml

from tests.support.paths import ROOT

GUIDE = ROOT / "docs/guides/platform.md"


def guide_policies(api_server: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The two policies of the guide, to deny and to allow, with the port of the API server at this address."""
    (text,) = [block for block in re.findall(r"```yaml\n(.*?)```", GUIDE.read_text("utf-8"), re.S) if "deny" in block]
    deny, allow = yaml.safe_load_all(text.replace("6443", str(urllib.parse.urlsplit(api_server).port)))
    return deny, allow
