"""Sandbox: runs Python code of a model so that it can harm nothing outside.

It imports only the standard library and no other package of the runtime: supervisors start often and stay small.
"""
