"""Preemption by SGLang's own retraction."""

import inspect
import logging
from typing import Any

__all__ = ["requeue", "retract"]

logger = logging.getLogger(__name__)


def retract(scheduler: Any, batch: Any, reqs: list[Any], released: list[Any]) -> None:
    """Takes requests out of the running batch and frees their KV; they are in no queue afterwards.

    The caller puts them back with `requeue`, after the admission pass: with overlap scheduling a forward of theirs is
    still under way, and its result is only ignored while they are not admitted again.

    Args:
        scheduler: The scheduler.
        batch: Its running batch.
        reqs: Unfinished requests of the batch.
        released: Those that were released are appended, each at once, so that none is lost whatever is raised. They
            are fewer than asked for only if SGLang raised, which is left to the log.
    """
    wanted = {id(req) for req in reqs}
    extra = (scheduler.server_args,) if "server_args" in inspect.signature(batch.release_req).parameters else ()
    left = len(batch.reqs)
    try:
        for i, req in enumerate(batch.reqs):
            if id(req) in wanted:
                left -= 1
                batch.release_req(i, left, *extra)
                released.append(req)
    except Exception:
        logger.exception("topas: SGLang could not retract a request; it goes on")
    gone = {id(req) for req in released}
    batch.filter_batch(keep_indices=[i for i, req in enumerate(batch.reqs) if id(req) not in gone])
    batch.batch_is_full = False


def requeue(scheduler: Any, reqs: list[Any]) -> None:
    """Puts preempted requests back into the waiting queue; a full queue does not refuse what it had admitted."""
    bound = scheduler.max_queued_requests
    scheduler.max_queued_requests = None
    try:
        for req in reqs:
            scheduler._add_request_to_queue(req, is_retracted=True)  # noqa: SLF001 (as SGLang's own retraction does)
    finally:
        scheduler.max_queued_requests = bound
