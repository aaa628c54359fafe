"""What runs in a pod: `python -m rljob_runtime.pod coordinator|worker|rewards`."""
