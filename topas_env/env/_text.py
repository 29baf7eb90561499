"""The compact text view of one scheduling point (`render_mode="ansi"`)."""

from collections.abc import Sequence

import numpy as np

from topas_env._core.layout import View

__all__ = ["text_view"]

_WIDTH = 40  # characters that stand for the whole KV budget
_LISTED = 5  # ready requests that are listed


def _bar(parts: Sequence[tuple[str, int]], budget: int) -> str:
    """Returns a bar in which each mark takes its share of the budget; a part gets one character at least."""
    text = ""
    for mark, tokens in parts:
        if tokens > 0:
            text += mark * max(1, round(_WIDTH * tokens / budget))
    return f"{text[:_WIDTH]:.<{_WIDTH}}"


def text_view(view: View, agent_names: Sequence[str], stage_names: Sequence[str], done: int, total: int) -> str:
    """Returns a few lines that show clock, memory by agent and the head of the queue.

    Args:
        view: What the scheduler sees.
        agent_names: Names in the order of `view.agents`.
        stage_names: Names in the order of `view.stages`.
        done: Finished tasks.
        total: Tasks of the episode.
    """
    head, agents = view.head[0], view.agents
    budget = int(head["budget"])
    ready = view.requests[view.ready[: head["n_ready"]]]
    running = view.requests[view.running[: head["n_running"]]]
    n_agents = len(agents)
    held = np.bincount(running["agent"], running["suffix"] + running["generated"], n_agents).astype(np.int64)
    n_running = np.bincount(running["agent"], minlength=n_agents)
    n_ready = np.bincount(ready["agent"], minlength=n_agents)
    used = int(agents["prefix"][agents["resident"] != 0].sum() + held.sum())
    head_line = (
        f"t {head['time']:.1f} s | tasks {int(head['n_live'])} live, {done} of {total} done | "
        f"KV {used:,} of {budget:,} tokens | running {len(running)}, ready {len(ready)}"
    )
    lines = [head_line, "P resident prefix, r running requests, c cached prefix (may be reclaimed)"]
    width = max((len(name) for name in agent_names), default=0)
    for index, name in enumerate(agent_names):
        prefix = int(agents["prefix"][index])
        parts = [
            ("P", prefix if agents["resident"][index] else 0),
            ("r", int(held[index])),
            ("c", prefix if agents["cached"][index] else 0),
        ]
        lines.append(
            f"{name:>{width}} |{_bar(parts, budget)}| prefix {prefix:>6,}, "
            f"running {n_running[index]:>2} ({held[index]:>6,}), ready {n_ready[index]:>2}"
        )
    lines += [
        f"ready: task {int(view.tasks['key'][request['task']])} {stage_names[request['stage']]} "
        f"({agent_names[request['agent']]}), {int(request['suffix']):,} prompt tokens after the prefix, "
        f"{int(request['generated']):,} generated, waits {head['time'] - request['ready']:.1f} s"
        for request in ready[:_LISTED]
    ]
    if len(ready) > _LISTED:
        lines.append(f"ready: {len(ready) - _LISTED} more")
    return "\n".join(lines)
