"""Loop: which tests a change needs, and the parts of `make check` and `make test` with their seconds.

``choice`` computes only; ``imports`` reads the tree, ``parts`` runs commands, ``suites`` names them.
"""
