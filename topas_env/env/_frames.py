"""One frame of a world, as text or as a picture."""

from typing import Any

import numpy as np

from topas_env.env._batch import Batch
from topas_env.env._picture import picture
from topas_env.env._text import text_view

__all__ = ["frame"]


def frame(batch: Batch, index: int) -> Any:
    """Returns what `render_mode` of the batch asks for: text, or uint8 (height, width, 3)."""
    s = batch.settings
    world = batch.world(index)
    done = int(np.isfinite(world.jct).sum())
    if s.render_mode == "ansi":
        return text_view(world.v, s.topology.agent_names, s.stage_names, done, s.num_tasks)
    title = f"{s.source.name} on {s.profile.name}: {world.clock['time'][0]:.0f} s, {done} of {s.num_tasks} tasks done"
    return picture(world, s.topology.agent_names, title)
