"""What runs in a pod: `python -m rljob_runtime.entrypoints coordinator|worker|rewards`."""
