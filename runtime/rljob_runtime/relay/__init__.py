"""Weights from the trainer to every rollout machine: a shared-memory store fed by a chunked chain broadcast.

    manifest           the layout of the flat buffer, and the checksum of every chunk
    slot               one file of shared memory that holds a version
    segment            the store in shared memory: one writer, any number of readers, one atomic flip per version
    fencing            which (term, epoch, revision) is accepted and which refused
    network/           transport (the methods of a network), tcp, wire (frames and the authenticated handshake)
    version_store      what one process holds: the complete version and the one in transfer
    sender             feeds one successor chunk by chunk
    receiver           listens, verifies, commits
    relay              one relay: a receiver, a version store and a sender
    publisher          the trainer's side: copies, returns, and ships during the next step
    gradient_transfer  the same transport for gradient sums
    tensors            torch tensors into and out of the flat buffer

Nothing but `tensors` and `publisher` imports torch, so a relay process stays small.
"""
