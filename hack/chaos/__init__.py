"""Chaos: faults on a real job on the local cluster, one after the other, and the times to detection and recovery.

``observation``, ``recovery``, ``rows``, ``schedule`` and ``table`` compute only; ``job_watch``, ``faults`` and
``campaign`` touch a cluster.
"""
