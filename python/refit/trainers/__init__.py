"""Trainers' live models: the layout of their parameters as they lie, and publishers that take the weights from there.

One module a framework, imported when it is asked for: ``Publisher.from_torch``, ``from_jax``, ``from_megatron``.
"""
