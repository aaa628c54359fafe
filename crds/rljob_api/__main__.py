"""`python -m rljob_api` prints the CustomResourceDefinition as YAML."""

from __future__ import annotations

import argparse
import sys

import yaml

from rljob_api.crd import crd

HEADER = "# Made by `python -m rljob_api` from the models in crds/rljob_api; do not edit.\n"


def render(*, cel: bool = True) -> str:
    """The CRD as it is checked in."""
    return HEADER + yaml.safe_dump(crd(cel=cel), sort_keys=False, width=120, allow_unicode=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m rljob_api", description=__doc__)
    parser.add_argument("--no-cel", action="store_true", help="leave out CEL rules, for servers older than 1.25")
    sys.stdout.write(render(cel=not parser.parse_args().no_cel))


if __name__ == "__main__":
    main()
