"""Three agents on a server started with `topas serve`: a planner, then a coder and a tester side by side.

topas serve --policy topas --tiny /tmp/tiny -- --port 30000
python docs/examples/three_agents.py http://127.0.0.1:30000
"""

import asyncio
import sys

from openai import AsyncOpenAI

from topas_bridge.client import define_workflow, new_task, stage, tagged

WORKFLOW = {
    "name": "feature",
    "agents": [{"name": name, "prefix_tokens": 0} for name in ("planner", "coder", "tester")],
    "stages": [
        {"name": "plan", "agent": "planner", "after": []},
        {"name": "code", "agent": "coder", "after": ["plan"]},
        {"name": "test", "agent": "tester", "after": ["plan"]},
    ],
}
INSTRUCTIONS = {
    name: f"You are the {name}. " + "Follow the rules of the house. " * 8 for name in ("planner", "coder", "tester")
}


async def ask(client: AsyncOpenAI, agent: str, text: str) -> str:
    """One call of an agent; its instructions are the static prefix that the server keeps."""
    messages = [{"role": "system", "content": INSTRUCTIONS[agent]}, {"role": "user", "content": text}]
    answer = await client.chat.completions.create(model="default", messages=messages, max_tokens=24, temperature=0)
    return answer.choices[0].message.content or ""


async def feature(client: AsyncOpenAI, wish: str) -> dict[str, str]:
    """One task: plan, then code and test."""
    task = new_task()
    with stage("feature", task=task, stage="plan"):
        plan = await ask(client, "planner", wish)

    async def run(name: str, agent: str) -> str:
        with stage("feature", task=task, stage=name):
            return await ask(client, agent, plan)

    code, test = await asyncio.gather(run("code", "coder"), run("test", "tester"))
    return {"plan": plan, "code": code, "test": test}


async def main(url: str) -> None:
    """Runs five tasks at once."""
    client = tagged(AsyncOpenAI(base_url=f"{url}/v1", api_key="-"))
    define_workflow(url, WORKFLOW)
    results = await asyncio.gather(*(feature(client, f"wish {i}") for i in range(5)))
    print(f"{len(results)} tasks done, {sum(len(part) for result in results for part in result.values())} characters")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:30000"))
