"""Integer codes of the policies that have a compiled path."""

__all__ = ["CODES"]

CODES = {
    "fcfs": 0,
    "lpm": 1,
    "parrot-fcfs": 2,
    "las": 3,
    "spf": 4,
    "srpt": 5,
    "gated-lpm": 6,
    "topas": 7,
    "topas-base": 8,
    "topas-reuse": 9,
    "topas-aging": 10,
}
