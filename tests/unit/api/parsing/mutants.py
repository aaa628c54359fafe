"""Mutants of rljob_api.parsing."""

from hack.mutants import Mutant

POD_SCHEMA = "tests/unit/api/parsing/test_pod_schema.py"

MUTANTS = (
    Mutant(
        name="of a pod template only the names are looked at",
        target="rljob_api.parsing.pod_schema:_Walk.value",
        before="_scalar(kind, value)",
        after="None",
        tests=(f"{POD_SCHEMA}::test_a_field_of_the_wrong_type_is_refused_with_its_path",),
    ),
    Mutant(
        name="each unknown name is compared with all known ones",
        target="rljob_api.parsing.pod_schema:_Walk._undefined",
        before="self._unknown > MOST_UNKNOWN",
        after="False",
        tests=(f"{POD_SCHEMA}::test_few_of_many_unknown_names_are_compared_with_the_known_ones",),
    ),
    Mutant(
        name="the last of two equal keys counts",
        target="rljob_api.parsing.yaml_text:_Loader._check_keys",
        before="name in lines",
        after="False",
        tests=("tests/unit/api/parsing/test_yaml_text.py::test_a_key_that_stands_twice_is_refused",),
    ),
)
