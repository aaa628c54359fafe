"""Mutants of rljob_runtime.coordinator.store.schema."""

from hack.mutants import Mutant

ASYNC_STORE = "tests/unit/coordinator/store/test_async_store.py"
MIGRATIONS = "tests/unit/coordinator/store/schema/test_migrations.py"
ON_POLICY_STORE = "tests/unit/coordinator/store/test_on_policy_store.py"

MUTANTS = (
    Mutant(
        name="a prompt that was filtered is drawn again",
        target="rljob_runtime.coordinator.store.schema.asynchronous:TRIGGERS",
        before="f\"EXISTS (SELECT 1 FROM groups WHERE {_PROMPT} AND fate IS NOT 'requeued')\"",
        after="f\"EXISTS (SELECT 1 FROM groups WHERE {_PROMPT} AND ifnull(fate, 'trained') = 'trained')\"",
        tests=(f"{ASYNC_STORE}::test_the_store_refuses",),
    ),
    Mutant(
        name="a migrated store has no triggers",
        target="rljob_runtime.coordinator.store.schema.migrations:migrate",
        before="""
            for trigger in triggers:
                db.execute(trigger)
        """,
        after="""
            for trigger in ():
                db.execute(trigger)
        """,
        tests=(f"{MIGRATIONS}::test_the_schema_is_that_of_a_new_store",),
    ),
    Mutant(
        name="the round under way is lost in a migration",
        target="rljob_runtime.coordinator.store.schema.migrations:_from_3",
        before="db.execute(opened).fetchall()",
        after="()",
        tests=(f"{MIGRATIONS}::test_the_round_under_way_goes_on_where_it_was",),
    ),
    Mutant(
        name="the store lets anything be trained on",
        target="rljob_runtime.coordinator.store.schema.core:TRIGGERS",
        before=(
            "f\"NEW.outcome = 'trained' AND NOT EXISTS (SELECT 1 FROM assigned WHERE {_SAME} AND sample = NEW.sample)\""
        ),
        after='"0"',
        tests=(ON_POLICY_STORE,),
    ),
)
