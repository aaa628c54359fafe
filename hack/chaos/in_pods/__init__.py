"""Code that a ConfigMap brings into the pods of a chaos job: one file each, which imports nothing of this package."""
