"""`python -m rljob_api`: prints the CustomResourceDefinition as YAML, or the policy that guards it."""

from __future__ import annotations

import argparse
import sys
from typing import Any

import yaml

from rljob_api.schema.crd import crd
from rljob_api.schema.downgrade import downgrade_policy

CRD, POLICY = "crd", "downgrade-policy"


def render(what: str = CRD) -> str:
    """Render the CRD or its policy as it is checked in."""
    command = "python -m rljob_api" + ("" if what == CRD else f" {what}")
    documents: list[dict[str, Any]] = [crd()] if what == CRD else downgrade_policy()
    text = yaml.safe_dump_all(documents, sort_keys=False, width=120, allow_unicode=True)
    return f"# Made by `{command}` from the models in crds/rljob_api; do not edit.\n{text}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m rljob_api", description=__doc__)
    parser.add_argument("what", nargs="?", choices=(CRD, POLICY), default=CRD, help="default: %(default)s")
    sys.stdout.write(render(parser.parse_args().what))


if __name__ == "__main__":
    main()
