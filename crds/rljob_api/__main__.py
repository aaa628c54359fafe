"""`python -m rljob_api`: prints the CustomResourceDefinition as YAML."""

from __future__ import annotations

import argparse
import sys

import yaml

from rljob_api.schema.crd import crd

HEADER = "# Made by `python -m rljob_api` from the models in crds/rljob_api; do not edit.\n"


def render() -> str:
    """Render the CRD as it is checked in."""
    return HEADER + yaml.safe_dump(crd(), sort_keys=False, width=120, allow_unicode=True)


def main() -> None:
    argparse.ArgumentParser(prog="python -m rljob_api", description=__doc__).parse_args()
    sys.stdout.write(render())


if __name__ == "__main__":
    main()
