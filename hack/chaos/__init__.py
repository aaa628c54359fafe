"""Faults on a real job on the local cluster, one after the other, and how long each took to be seen and mended.

``observation``, ``recovery``, ``rows``, ``schedule`` and ``table`` compute only; ``watching``, ``inject`` and
``campaign`` touch a cluster.
"""
