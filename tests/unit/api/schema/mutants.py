"""Mutants of rljob_api.schema."""

from hack.mutants import Mutant

CRD = "tests/unit/api/schema/test_crd.py"

MUTANTS = (
    Mutant(
        name="a rule is lost on its way to the server",
        target="rljob_api.schema.cel:RULES",
        before='"self.promptsPerRound % self.minibatches == 0"',
        after='"true"',
        tests=("tests/integration/api/test_cel.py::test_the_server_refuses_what_it_can_see",),
    ),
    Mutant(
        name="the default of a nested object is left empty",
        target="rljob_api.schema.crd:_default",
        before="{name: default for name, default in inner.items() if default is not None}",
        after="{} if any(inner.values()) else None",
        tests=(f"{CRD}::test_the_default_of_an_object_is_written_out",),
    ),
    Mutant(
        name="an object with defaults inside is owned as a whole",
        target="rljob_api.schema.crd:_own_as_a_whole",
        before="not _has_defaults(child)",
        after='"default" not in child',
        tests=(f"{CRD}::test_an_object_that_may_be_left_out_is_filled_in_or_owned_as_a_whole",),
    ),
    Mutant(
        name="an object of the status is merged key by key",
        target="rljob_api.schema.crd:_own_as_a_whole",
        before='child["x-kubernetes-map-type"] = "atomic"',
        after="pass",
        tests=(f"{CRD}::test_an_object_that_may_be_left_out_is_filled_in_or_owned_as_a_whole",),
        canary=True,
    ),
)
