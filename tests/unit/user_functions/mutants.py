"""Mutants of rljob_runtime.user_functions."""

from hack.mutants import Mutant

TRACEBACKS = "tests/unit/user_functions/test_tracebacks.py"

MUTANTS = (
    Mutant(
        name="the traceback of a user's function is printed for each call",
        target="rljob_runtime.user_functions.tracebacks:Tracebacks.print_once",
        before="self._printed.add(place)",
        after="pass",
        tests=(
            f"{TRACEBACKS}::test_a_traceback_is_printed_once_for_each_place",
            "tests/unit/training/algorithm/test_own.py::test_the_users_own_traceback_is_printed_once",
        ),
        canary=True,
    ),
    Mutant(
        name="a user's module that cannot be imported shows no place",
        target="rljob_runtime.user_functions.loading:load_function",
        before="Tracebacks().print_once(label, error)",
        after="repr(error)",
        tests=(f"{TRACEBACKS}::test_a_module_that_cannot_be_imported_shows_where",),
    ),
)
