"""Mutants of rljob_runtime.ray_backend."""

from hack.mutants import Mutant

BACKENDS = "tests/contract/test_backends.py"
BACKEND = "tests/unit/ray_backend/test_backend.py"

MUTANTS = (
    Mutant(
        name="only the first thread of an actor that computes stands back",
        target="rljob_runtime.ray_backend.actors:lower_priority",
        before='map(int, os.listdir("/proc/self/task"))',
        after="[os.getpid()]",
        tests=("tests/unit/ray_backend/test_actors.py",),
    ),
    Mutant(
        name="one accelerator of a loaned machine computes",
        target="rljob_runtime.ray_backend.actors:make_worker",
        before="job.spec.rollout.slots",
        after="1",
        tests=("tests/unit/training/loans/test_worker.py::test_the_worker_of_a_job_goes_the_whole_way",),
    ),
    Mutant(
        name="the next coordinator makes its own actors",
        target="rljob_runtime.ray_backend.backend:RayBackend._actor",
        before="get_if_exists=True",
        after="get_if_exists=False",
        tests=(f"{BACKENDS}::test_the_next_coordinator_finds_the_same_processes",),
    ),
    Mutant(
        name="a name that no process will ever have is waited for",
        target="rljob_runtime.ray_backend.backend:RayBackend._registration",
        before="is_abandoned(handle)",
        after="False",
        tests=(f"{BACKENDS}::test_an_actor_that_was_only_registered_is_made_again",),
    ),
    Mutant(
        name="what models wrote is pickled in the event loop",
        target="rljob_runtime.ray_backend.backend:RayChannel._send",
        before="method in BULKY",
        after="False",
        tests=(BACKEND,),
        canary=True,
    ),
    Mutant(
        name="the end of a loan overtakes what is to be computed",
        target="rljob_runtime.ray_backend.backend:RayChannel._send",
        before="await asyncio.wait(self._sending)",
        after="pass",
        tests=(f"{BACKEND}::test_nothing_overtakes_what_is_on_its_way_though_its_caller_gave_it_up",),
    ),
)
