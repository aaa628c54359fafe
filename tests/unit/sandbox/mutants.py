"""Mutants of rljob_runtime.sandbox."""

from hack.mutants import Mutant

ESCAPES = "tests/unit/sandbox/test_escapes.py"
SCRATCH = "tests/unit/sandbox/test_scratch.py"
SECCOMP = "tests/unit/sandbox/test_seccomp.py"
SUPERVISOR = "tests/unit/sandbox/test_supervisor.py"

MUTANTS = (
    Mutant(
        name="programs read the package that runs them",
        target="rljob_runtime.sandbox.confine_child:Interpreter.of_this_process",
        before="_own_packages()",
        after="()",
        tests=(f"{SUPERVISOR}::test_a_program_reads_nothing_of_the_package_that_runs_it",),
    ),
    Mutant(
        name="programs may read every file",
        target="rljob_runtime.sandbox.confine_child:confine_and_run",
        before="landlock.restrict(_allowed(filesystem.folder, interpreter))",
        after="_allowed(filesystem.folder, interpreter)",
        tests=(f"{ESCAPES}::test_a_file_of_the_same_user_outside_cannot_be_read[Landlock]",),
    ),
    Mutant(
        name="any length of a message is believed",
        target="rljob_runtime.sandbox.framing:receive",
        before="length > LONGEST_BYTES",
        after="length > 1 << 64",
        tests=(f"{SUPERVISOR}::test_what_is_no_message_ends_the_talk",),
    ),
    Mutant(
        name="a process goes on with the call that was cancelled",
        target="rljob_runtime.sandbox.process_pool:ProcessPool.acquire",
        before="asyncio.CancelledError",
        after="ZeroDivisionError",
        tests=("tests/unit/rewards/test_function_scorer.py::test_a_cancelled_call_does_not_mix_up_the_next_answers",),
    ),
    Mutant(
        name="a process is killed before it could reap what runs under it",
        target="rljob_runtime.sandbox.process_pool:ChildProcess.kill",
        before="self.stdin.close()",
        after="",
        tests=("tests/unit/rewards/test_remote.py::test_a_supervisor_that_is_let_go_reaps_its_program",),
    ),
    Mutant(
        name="a byte in each page is a byte",
        target="rljob_runtime.sandbox.resource_usage:bytes_written",
        before='("wchar", "write_bytes")',
        after='("wchar",)',
        tests=(f"{ESCAPES}::test_a_byte_in_each_page_counts_as_the_page[Landlock]",),
    ),
    Mutant(
        name="programs cannot import what the image holds",
        target="rljob_runtime.sandbox.sandbox:Sandbox._start",
        before="installed_packages()",
        after="[]",
        tests=(f"{SUPERVISOR}::test_a_program_may_import_what_lies_only_in_our_venv",),
    ),
    Mutant(
        name="a mode hides files",
        target="rljob_runtime.sandbox.scratch:_open",
        before='os.chmod(f"/proc/self/fd/{handle}", stat.S_IRWXU)',
        after="return None",
        tests=(f"{SCRATCH}::test_no_mode_hides_anything_from_an_ordinary_user",),
    ),
    Mutant(
        name="a folder that stays shut is empty",
        target="rljob_runtime.sandbox.scratch:count_entries",
        before="found = enough + 1",
        after="pass",
        tests=(f"{SCRATCH}::test_what_stays_shut_counts_as_more_than_enough",),
    ),
    Mutant(
        name="programs may start processes",
        target="rljob_runtime.sandbox.seccomp:_bodies",
        before="[_argument(0), (_JUMP_SET, 1, 0, _CLONE_THREAD), _REFUSE]",
        after="[]",
        tests=(f"{ESCAPES}::test_a_fork_bomb_makes_no_process",),
        canary=True,
    ),
    Mutant(
        name="programs may fill the kernel's memory",
        target="rljob_runtime.sandbox.seccomp:_FCNTL_REFUSED",
        before="(8, 10, 15, 1026, 1031)",
        after="(8, 10, 15, 1026)",
        tests=(ESCAPES,),
    ),
    Mutant(
        name="a worker may empty what it may read",
        target="rljob_runtime.sandbox.seccomp:READ_ONLY",
        before="os.O_ACCMODE | os.O_TRUNC | os.O_CREAT",
        after="0",
        tests=(f"{SECCOMP}::test_no_kernel_with_landlock_lets_a_file_be_emptied[1-worker]",),
    ),
    Mutant(
        name="programs may empty what they may read",
        target="rljob_runtime.sandbox.seccomp:OWN_FILES",
        before="os.O_ACCMODE | os.O_TRUNC",
        after="0",
        tests=(f"{SECCOMP}::test_no_kernel_with_landlock_lets_a_file_be_emptied[1-program]",),
    ),
    Mutant(
        name="a program may have itself killed by a timer",
        target="rljob_runtime.sandbox.seccomp:REFUSED",
        before='"timer_create": (222, 107)',
        after="",
        tests=(f"{ESCAPES}::test_what_is_refused_is_an_error_of_the_program[Landlock]",),
    ),
    Mutant(
        name="what a program writes is not counted",
        target="rljob_runtime.sandbox.supervisor:_Monitor._check_usage",
        before="bytes_written(pid) > FOLDER_BYTES",
        after="bytes_written(pid) < 0",
        tests=(f"{ESCAPES}::test_what_writes_without_end_is_stopped[Landlock]",),
    ),
    Mutant(
        name="a program that hides itself is our failure",
        target="rljob_runtime.sandbox.supervisor:_Monitor._check_usage",
        before="self._readable, self._unreadable_since = True, None",
        after="self._unreadable_since = None",
        tests=(f"{ESCAPES}::test_an_ordinary_user_without_any_right_gets_the_same",),
    ),
    Mutant(
        name="a process whose start is cancelled leaves what it started",
        target="rljob_runtime.sandbox.process_pool:ChildProcess.spawn",
        before="asyncio.shield(starting)",
        after="starting",
        tests=("tests/unit/sandbox/test_process_pool.py",),
    ),
)
