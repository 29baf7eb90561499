"""Three agents of the OpenAI Agents SDK on a server started with `topas serve`: a planner, then coder and tester.

pip install openai-agents
topas serve --policy topas --tiny /tmp/tiny -- --port 30000
python docs/examples/agents_sdk.py http://127.0.0.1:30000

An agent's model settings name its stage, whoever hands over to it; a `stage` block around a run names the task. The
client from `tagged` sends both with each call.
"""

import asyncio
import sys

from openai import AsyncOpenAI

from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, Runner, set_tracing_disabled
from topas_bridge.client import define_workflow, new_task, stage, tagged, tags

AFTER = {"planner": [], "coder": ["planner"], "tester": ["planner"]}
WORKFLOW = {
    "name": "feature-agents",
    "agents": [{"name": name, "prefix_tokens": 0} for name in AFTER],
    "stages": [{"name": name, "agent": name, "after": before} for name, before in AFTER.items()],
}


def build(client: AsyncOpenAI) -> dict[str, Agent]:
    """The agents; the instructions of each are the static prefix that the server keeps."""
    model = OpenAIChatCompletionsModel(model="default", openai_client=client)
    return {
        name: Agent(
            name=name,
            instructions=f"You are the {name}. " + "Follow the rules of the house. " * 8,
            model=model,
            model_settings=ModelSettings(max_tokens=24, temperature=0, extra_body=tags(stage=name)),
        )
        for name in AFTER
    }


async def feature(agents: dict[str, Agent], wish: str) -> list[str]:
    """One task: the planner's answer goes to the coder and the tester."""
    with stage(WORKFLOW["name"], task=new_task()):
        plan = await Runner.run(agents["planner"], wish)
        rest = await asyncio.gather(*(Runner.run(agents[name], plan.final_output) for name in ("coder", "tester")))
    return [str(result.final_output) for result in (plan, *rest)]


async def main(url: str) -> None:
    """Runs five tasks at once."""
    set_tracing_disabled(True)  # the SDK would send its traces to OpenAI
    client = tagged(AsyncOpenAI(base_url=f"{url}/v1", api_key="-"))
    define_workflow(url, WORKFLOW)
    agents = build(client)
    results = await asyncio.gather(*(feature(agents, f"wish {i}") for i in range(5)))
    print(f"{len(results)} tasks done, {sum(len(text) for result in results for text in result)} characters")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:30000"))
