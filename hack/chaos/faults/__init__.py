"""Faults: how each one is made on a local cluster, and taken back.

`Injector` has a method for each row of `chaos.rows`. Programs that run in a pod are texts: what a pod mounts need not
have this package.
"""
