"""The sandbox: Python that a model wrote, run so that it can hurt nothing and nobody.

Standard library only, and no other room of the runtime: supervisors start often and stay small.
"""
