"""Names of policies that several tests go through."""

FIRST_NAMES = [
    "fcfs", "lpm", "parrot-fcfs", "las", "spf", "srpt", "gated-lpm", "topas", "topas-base", "topas-reuse",
    "topas-aging", "hold-many", "hold-depth",
]  # fmt: skip
"""The first ones of `policy_names()`: baselines of the paper, TOPAS, the planner's base policies; all are compiled."""
