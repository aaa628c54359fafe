"""Deployment lister: the runners of a job, listed only for jobs with environments.

Their pods are listed while some are missing, and always where each runs one episode.

A list may come from the API server's cache, if it is as fresh as this process's own writes. It may lack the writes of
an earlier leader. That does no harm: a missing Deployment is applied again, and the watch reports later changes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from rljob_api.constants import LABEL_ENVIRONMENT, LABEL_ENVIRONMENTS_OF, environment_deployment
from rljob_api.spec import RLJob
from rljob_api.spec.environments import EpisodeReset
from rljob_kube.client import ANY_VERSION, KubeClient
from rljob_kube.errors import ApiError
from rljob_kube.resources import DEPLOYMENT, POD, Json
from rljob_operator.policies.base import runner_start
from rljob_operator.policies.base.names import job_selector
from rljob_operator.policies.base.runners import Runners, own_runners, relevant_part
from rljob_operator.policies.base.single_episode_pods import parse_runner_pod, runs_no_more
from rljob_operator.readers.observer import MANAGED, FreshLists

_logger = logging.getLogger(__name__)

_RIGHT = "not allowed to list Deployments: jobs with environments are Stalled"


class DeploymentLister:
    """Deployments of runners."""

    def __init__(self, kube: KubeClient) -> None:
        self._kube = kube
        self._lists = FreshLists(kube, DEPLOYMENT, relevant_part)
        self._pods = FreshLists(kube, POD, runner_start.relevant_part)
        self.open = False
        """Whether Deployments may be watched."""

    async def prime(self, namespaces: Sequence[str | None]) -> None:
        """Find out whether Deployments may be listed. An operator of an older chart has no right to."""
        try:
            for namespace in namespaces:
                await self._kube.read(
                    DEPLOYMENT, namespace, _nothing, labels=MANAGED, not_older_than=ANY_VERSION, metadata_only=True
                )
        except ApiError as error:
            if error.status != 403:
                raise
            _logger.warning("%s: %s", _RIGHT, error.message)
            return
        self.open = True

    def observe(self, items: Iterable[Json]) -> None:
        """Record Deployments as the server stored them. From now on no list may be older."""
        self._lists.observe(items)

    def observe_pods(self, items: Iterable[Json]) -> None:
        """Record pods of runners as the server stored them; see `observe`."""
        self._pods.observe(items)

    async def runners(self, job: RLJob) -> Mapping[str, Runners]:
        """List the runners that this job owns, by environment. Where some are not ready, find out why."""
        if not job.spec.environments:
            return {}
        found = own_runners(job.metadata.uid, await self._lists.list(job.namespace, job_selector(job.name)))
        renewed = {one.name for one in job.spec.environments if one.reset is EpisodeReset.POD}
        looked = [one for one in found.values() if one.ready < one.wanted or one.name in renewed]
        if not looked:
            return found
        pods = await self._pods.list(job.namespace, f"{LABEL_ENVIRONMENTS_OF}={job.name}")
        return {**found, **{one.name: _with_pods(job.name, one, pods, one.name in renewed) for one in looked}}


def _with_pods(job: str, runners: Runners, pods: Iterable[Json], renewed: bool) -> Runners:
    """Add what the pods of an environment say. `renewed`: each of them runs one episode."""
    own = [
        pod
        for pod in pods
        if (pod["metadata"].get("labels") or {}).get(LABEL_ENVIRONMENT) == runners.name
        and runner_start.is_of(pod, environment_deployment(job, runners.name))
    ]
    return replace(
        runners,
        broken=runner_start.start_failure(job, runners.name, own) if runners.ready < runners.wanted else None,
        single_episode_pods=tuple(parse_runner_pod(pod) for pod in own if not runs_no_more(pod)) if renewed else None,
    )


def _nothing(item: Json) -> None:
    return None
