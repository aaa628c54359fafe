"""Guard: records what a renaming must not change, and compares it afterwards.

``product`` is the only module that names modules of the product. ``flows``, ``differences`` and ``allowed`` compute
only; ``manifests``, ``seeds``, ``names`` and ``counts`` observe; ``record`` keeps a file of all of it.
"""
