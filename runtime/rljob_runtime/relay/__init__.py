"""Weights from the trainer to every rollout machine: a shared-memory store fed by a chunked chain broadcast.

    manifest   what lies where in the flat buffer, and the checksum of every chunk
    slot       one file of shared memory that holds a version
    segment    the store in shared memory: one writer, any number of readers, one atomic flip per version
    fence      which (term, epoch, revision) is obeyed and which refused
    transport  what is asked of a network: a few methods
    tcp        the one that there is
    wire       frames and the authenticated handshake
    shelf      what one process holds: the whole version and the one on its way
    link       the sending side: feeds one successor chunk by chunk
    inlet      the receiving side: listens, verifies, commits
    relay      one relay: an inlet, a shelf and a link
    push       the trainer's side: copy, return, ship behind the next step
    tensors    torch tensors into and out of the flat buffer

Nothing but `tensors` and `push` imports torch, so a relay process stays small.
"""
