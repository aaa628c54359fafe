"""The mutants of `make test`: forty that stand for all, so that a suite that has stopped looking is noticed.

The choice is fixed. Every package that has mutants has one here, and every technique. Among those of a package it is
one whose tests need neither a cluster nor vLLM and take seconds. `make test-all` tries every mutant.
"""

CANARIES = {
    "API": (
        "unknown fields are accepted",
        "an object of the status is merged key by key",
    ),
    "operator": (
        "an incarnation is used again",
        "whatever pod has the name is deleted",
        "a silent kubelet is no witness",
        "a drain may take every machine",
        "the third page of a list is the second one again",
        "an operator that lost its Lease ends, and the kubelet starts it ever later",
    ),
    "elastic machines": ("a share is taken of one machine too many",),
    "tail batching": (
        "nobody wins the race between prompts",
        "a long round takes what it likes",
        "a prompt is tried again with the numbers that made it long",
    ),
    "parallelism planner": (
        "a step is made to a slower size",
        "a layout is applied before it is in force",
    ),
    "reward scheduler": (
        "a wrong run shows how long a test takes",
        "a sandbox that fails is worth zero",
    ),
    "sandbox": ("programs may start processes",),
    "stream training and loans": (
        "a contribution is counted twice",
        "nobody tells a machine that its loan is over",
    ),
    "asynchrony": (
        "what is over the bound is trained on",
        "the trainer waits for the relays",
    ),
    "repack": (
        "an emptied replica receives",
        "a moving response has two owners",
        "a move by hand takes nothing along",
    ),
    "relay": (
        "a relay accepts an older chain",
        "a chunk's checksum is not looked at",
    ),
    "failures and the store": (
        "a checkpoint counts without its marker",
        "the numbers of a lost store are used again",
        "the history check lets a response be trained on twice",
    ),
    "engines": (
        "a late abort ends a later attempt",
        "the oldest is preempted",
    ),
    "training": ("a weight carries a gradient",),
    "data, traces and replay": (
        "good records far apart are taken for none",
        "more responses change the first ones",
    ),
    "simulator": ("the simulator does not look at tokens",),
    "pods and the command line": (
        "what models wrote is pickled in the event loop",
        "a second run goes on with other data",
        "the head's tables die with it",
        "a round is foretold as if each size had as many replicas",
    ),
    "faults": ("chaos: all is well although a machine is missing",),
}
"""Names of mutants by what they stand for."""
