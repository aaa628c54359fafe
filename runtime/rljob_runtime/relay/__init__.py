"""Relay: brings weights from the trainer to every rollout machine by a chunked chain broadcast into shared memory.

    config             identity, address, key and timeouts of one relay
    manifest           the layout of the flat buffer, and the checksum of every chunk
    slot               one file of shared memory that holds a version
    segment            the store in shared memory: one writer, any number of readers, one atomic flip per version
    fencing            the token (term, epoch, revision), and which tokens are refused
    network/           transport (the methods of a network), tcp, wire (frames and the authenticated handshake)
    version_store      what one process holds: the complete version and the one in transfer
    sender             feeds one successor chunk by chunk
    receiver           listens, verifies, commits
    relay              one relay: a receiver, a version store and a sender
    publisher          the trainer's side: copies, returns, and ships during the next step
    gradient_transfer  the same transport for gradient sums
    tensors            torch tensors into and out of the flat buffer

Only `tensors` and `publisher` import torch, so a relay process stays small.
"""
