"""Slow, independent readings of the specification that tests compare the kernels with."""
