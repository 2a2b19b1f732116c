"""Refit moves the newest weights of a model from the processes that train it to the processes that serve it.

In the layout that each side keeps, all or nothing, proven. The names below are the whole API; each is documented where
it is defined.
"""

__version__ = "0.1.0"
__all__ = ["__version__"]
