"""Two yardsticks that every number of `make bench` is a ratio to, measured in the same run on the same machine."""

import heapq
import random
import time

import gymnasium as gym

__all__ = ["cartpole_steps_per_s", "heap_events_per_s"]


def cartpole_steps_per_s(seconds: float = 1.0) -> float:
    """Returns steps a second of CartPole-v1 as `gym.make` gives it, with a random action each."""
    env = gym.make("CartPole-v1")
    env.reset(seed=0)
    actions = [random.Random(0).randrange(2) for _ in range(1000)]
    steps, start = 0, time.perf_counter()
    while (passed := time.perf_counter() - start) < seconds:
        for action in actions:
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()
        steps += len(actions)
    env.close()
    return steps / passed


def heap_events_per_s(seconds: float = 1.0) -> float:
    """Returns events a second of a bare heapq that holds 1,000 events: pop the next one, push another."""
    draw = random.Random(0).random
    heap = [draw() for _ in range(1000)]
    heapq.heapify(heap)
    events, start = 0, time.perf_counter()
    while (passed := time.perf_counter() - start) < seconds:
        for _ in range(10_000):
            heapq.heappushpop(heap, heap[0] + draw())
        events += 10_000
    return events / passed
