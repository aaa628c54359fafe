"""Entrypoints: the processes of a pod, `python -m rljob_runtime.entrypoints coordinator|head|worker|rewards`."""
