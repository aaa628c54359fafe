"""Mutants of rljob_kube."""

from hack.mutants import Mutant

KUBERNETES = "tests/unit/coordinator/control_plane/test_kubernetes.py"
CLIENT = "tests/unit/kube/test_client.py"
CREDENTIALS = "tests/unit/kube/test_credentials.py"

BOUNDED = "tests/unit/kube/test_bounded_server.py"

MUTANTS = (
    Mutant(
        name="one host takes every connection of a server",
        target="rljob_kube.bounded_server:_Places._has_room",
        before="self._by_host[host] < self._limits.of_a_host",
        after="True",
        tests=(f"{BOUNDED}::test_one_host_has_so_many_connections_and_keeps_no_other_out",),
    ),
    Mutant(
        name="connections that ended keep their places",
        target="rljob_kube.bounded_server:_Places._sweep",
        before="not one.is_closing()",
        after="True",
        tests=(f"{BOUNDED}::test_one_host_has_so_many_connections_and_keeps_no_other_out",),
    ),
    Mutant(
        name="a connection without a request stays",
        target="rljob_kube.bounded_server:serve",
        before="limits.idle_seconds",
        after="3600.0",
        tests=(f"{BOUNDED}::test_who_completes_no_request_is_ended",),
    ),
    Mutant(
        name="a body is read ahead as far as its library likes",
        target="rljob_kube.bounded_server:serve",
        before="read_bufsize=READ_BUFFER",
        after="",
        tests=(f"{BOUNDED}::test_little_of_a_body_is_read_before_its_handler_reads_it",),
    ),
    Mutant(
        name="an event that is too long ends the coordinator",
        target="rljob_kube.client:KubeClient.watch",
        before="(aiohttp.ClientError, HttpProcessingError, TimeoutError, OSError, ValueError, LookupError)",
        after="(aiohttp.ClientError, TimeoutError, OSError, ValueError, LookupError)",
        tests=(KUBERNETES,),
    ),
    Mutant(
        name="the third page of a list is the second one again",
        target="rljob_kube.client:KubeClient._pages",
        before='kept | {"continue": token}',
        after='{"continue": token} | kept',
        tests=(f"{CLIENT}::test_a_list_whose_version_is_dropped_begins_again",),
        canary=True,
    ),
    Mutant(
        name="a list is read whole",
        target="rljob_kube.client:KubeClient.read_with_version",
        before='{"limit": str(resource.page), **_selectors(labels, fields)}',
        after="_selectors(labels, fields)",
        tests=(f"{CLIENT}::test_memory_does_not_grow_with_the_length_of_a_list",),
    ),
    Mutant(
        name="a page stays in memory while the next one comes",
        target="rljob_kube.client:KubeClient._pages",
        before='token = answer.get("metadata", {}).get("continue")',
        after="""
            self.__dict__.setdefault("pages", []).append(answer)
            token = answer.get("metadata", {}).get("continue")
        """,
        tests=(f"{CLIENT}::test_memory_does_not_grow_with_the_length_of_a_list",),
    ),
    Mutant(
        name="each request runs the plug-in",
        target="rljob_kube.credentials:Credentials.access",
        before="self._valid() or await self._renew()",
        after="await self._renew()",
        tests=(f"{CREDENTIALS}::test_many_requests_run_a_plug_in_once",),
    ),
    Mutant(
        name="a refused identity is sent again",
        target="rljob_kube.credentials:Credentials.renew",
        before="await self._renew()",
        after="refused",
        tests=(f"{CREDENTIALS}::test_a_refused_identity_is_renewed_once",),
    ),
    Mutant(
        name="a client certificate is never replaced",
        target="rljob_kube.credentials:Credentials._context",
        before="self._tls is None or self._tls[0] != key",
        after="self._tls is None",
        tests=("tests/integration/kube/test_api_server.py",),
    ),
    Mutant(
        name="a long event is no event",
        target="rljob_kube.transport:Transport._stream",
        before="LONGEST_EVENT_BYTES // 2",
        after="1 << 16",
        tests=(KUBERNETES,),
    ),
    Mutant(
        name="a plug-in outlives a request that is cancelled while it starts",
        target="rljob_kube.exec_plugin:_output",
        before="asyncio.shield(starting)",
        after="starting",
        tests=(
            "tests/unit/kube/test_exec_plugin.py::test_a_request_that_is_cancelled_while_its_program_starts_kills_it",
        ),
    ),
)
