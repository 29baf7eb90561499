"""The names of what a learned policy sees, in the order of the columns."""

from topas_env._core.codes import CODES, SHORT_ORDERS

__all__ = ["CANDIDATE_FEATURES", "GLOBAL_FEATURES", "LIMIT"]

LIMIT = 10.0

GLOBAL_FEATURES = (
    "running", "ready", "unfinished_tasks", "resident_tokens", "cached_tokens", "reserved_tokens", "free_tokens",
    "ready_tokens", "free_slots", "mean_task_age", "oldest_task_age", "mean_ready_wait", "mean_ready_depth",
    "mean_call_s", "load_to_call", "rebuild_to_decode", "prefill_to_decode", "ready_agents",
    "mean_ready_path", "ready_cached", "coming_soon", "running_left_s", "running_least_left_s",
    "running_agents", "future_stages", "most_ready",
)  # fmt: skip

CANDIDATE_FEATURES = (
    "present",
    "kept_share",
    "admitted",
    "preempted",
    "admit",
    "move",
    "redo",
    "revoke",
    "reuse",
    "total",
    "behind_best",
    "prefix_tokens",
    "request_tokens",
    "free_tokens",
    "idle_tokens",
    "incoming_tokens",
    "outgoing_tokens",
    "prefixes",
    "admitted_share",
    "batch",
    "admitted_age",
    "left_age",
    "admitted_depth",
    "last_stages",
    "admitted_call_s",
    "left_covered",
    "left_uncovered",
    "gain_per_token",
    "admitted_prefill",
    "admitted_path",
    "admitted_cached",
    "soon_covered",
    "load_s",
    "left_path",
    "left_last_stages",
    "left_demand",
    "admitted_demand",
    "kept_future",
    "left_future",
    "next_kept",
    "next_left",
    "evicted_tokens",
    "cached_demand",
    "new_prefixes",
    *(f"by_{name.replace('-', '_')}" for name in (*CODES, *SHORT_ORDERS)),
)
