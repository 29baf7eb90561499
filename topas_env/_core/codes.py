"""Integer codes of the policies that have a compiled path, and what both their paths go by."""

__all__ = ["CODES", "LPM_QUEUE_LIMIT", "SHORT_ORDERS"]

CODES = {
    "fcfs": 0,
    "lpm": 1,
    "parrot-fcfs": 2,
    "las": 3,
    "spf": 4,
    "srpt": 5,
    "gated-lpm": 6,
    "hold-many": 7,
    "hold-depth": 8,
    "topas": 9,
    "topas-base": 10,
    "topas-reuse": 11,
    "topas-aging": 12,
}
SHORT_ORDERS = ("hold-path", "hold-match", "hold-arrival", "left", "path", "few")
"""Orders in the short list of candidates that are no policies (`orders.own_code` says what their names mean)."""

LPM_QUEUE_LIMIT = 128  # SGLang's schedule_policy.py turns lpm into fcfs above so many waiting requests
