"""Scenarios that several tests of the agents draw from."""

from topas_agents._config import Scenarios

TINY = Scenarios(workloads=("dag-4",), num_tasks=(4, 6), loads=(0.7, 0.9))
