"""The admission pass: its arguments and its answer, and the requests in the middle of a prefill."""

from typing import Any

__all__ = ["chunked_requests", "may_preempt", "new_batch", "release_flag", "running_after", "running_batch"]


def running_batch(scheduler: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Returns the running batch that `get_new_batch_prefill` was called with."""
    if args:
        return args[0]
    return kwargs.get("running_batch", scheduler.running_batch)


def new_batch(plan: Any) -> Any:
    """Returns the prefill batch of a pass, None if it made none (0.5.16 and later answer with a plan)."""
    return plan.batch_to_run if hasattr(plan, "batch_to_run") else plan


def chunked_requests(scheduler: Any) -> tuple[Any, ...]:
    """Returns the requests in the middle of a chunked prefill; they are in no batch between two chunks."""
    req = scheduler.chunked_req
    return () if req is None else (req,)


def release_flag(batch: Any) -> None:
    """Lets the next pass try to admit: SGLang stops trying once the pool was full, until a request leaves."""
    batch.batch_is_full = False


def running_after(plan: Any, batch: Any) -> Any:
    """Returns the running batch that a pass leaves behind."""
    return getattr(plan, "running_batch", batch)


def may_preempt(scheduler: Any) -> bool:
    """Tells whether requests may be retracted: all but those whose drafts are verified by a forward still under way."""
    spec = getattr(scheduler, "spec_algorithm", None)
    return spec is None or bool(spec.is_none()) or not scheduler.enable_overlap
