"""Integer codes of the policies that have a compiled path, and what both their paths go by."""

__all__ = ["CODES", "LPM_QUEUE_LIMIT"]

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
LPM_QUEUE_LIMIT = 128  # SGLang's schedule_policy.py turns lpm into fcfs above so many waiting requests
