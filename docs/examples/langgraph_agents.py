"""Three agents as a LangGraph graph on a server started with `topas serve`: a planner, then coder and tester.

pip install langgraph openai
topas serve --policy topas --tiny /tmp/tiny -- --port 30000
python docs/examples/langgraph_agents.py http://127.0.0.1:30000

Each node opens a `stage` block; the client from `tagged` does the rest. The workflow that is registered with the server
has the edges of the graph that LangGraph runs.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Any, TypedDict

from langgraph.graph import END, START, StateGraph
from openai import AsyncOpenAI

from topas_bridge.client import define_workflow, new_task, stage, tagged

AFTER = {"planner": [], "coder": ["planner"], "tester": ["planner"]}
WORKFLOW = {
    "name": "feature-graph",
    "agents": [{"name": name, "prefix_tokens": 0} for name in AFTER],
    "stages": [{"name": name, "agent": name, "after": before} for name, before in AFTER.items()],
}
INSTRUCTIONS = {name: f"You are the {name}. " + "Follow the rules of the house. " * 8 for name in AFTER}


class State(TypedDict, total=False):
    """What the nodes hand on."""

    task: str
    wish: str
    planner: str
    coder: str
    tester: str


def node(client: AsyncOpenAI, agent: str) -> Callable[[State], Awaitable[dict[str, str]]]:
    """One agent; its instructions are the static prefix that the server keeps."""

    async def run(state: State) -> dict[str, str]:
        text = state["wish"] if agent == "planner" else state["planner"]
        messages: Any = [{"role": "system", "content": INSTRUCTIONS[agent]}, {"role": "user", "content": text}]
        with stage(WORKFLOW["name"], task=state["task"], stage=agent):
            answer = await client.chat.completions.create(
                model="default", messages=messages, max_tokens=24, temperature=0
            )
        return {agent: answer.choices[0].message.content or ""}

    return run


def build(client: AsyncOpenAI) -> Any:
    """The graph: the same edges as the workflow."""
    graph = StateGraph(State)
    for agent, before in AFTER.items():
        graph.add_node(f"run_{agent}", node(client, agent))
        for name in before:
            graph.add_edge(f"run_{name}", f"run_{agent}")
        if not before:
            graph.add_edge(START, f"run_{agent}")
        if not any(agent in others for others in AFTER.values()):
            graph.add_edge(f"run_{agent}", END)
    return graph.compile()


async def main(url: str) -> None:
    """Runs five tasks at once."""
    client = tagged(AsyncOpenAI(base_url=f"{url}/v1", api_key="-"))
    define_workflow(url, WORKFLOW)
    graph = build(client)
    results = await asyncio.gather(*(graph.ainvoke({"task": new_task(), "wish": f"wish {i}"}) for i in range(5)))
    print(f"{len(results)} tasks done, {sum(len(result[name]) for result in results for name in AFTER)} characters")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:30000"))
