"""The tests of every part; `pytest` finds them by path, and imports what they share from `tests.support`."""
