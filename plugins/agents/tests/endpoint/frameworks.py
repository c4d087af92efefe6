"""Agents on the default paths of packages: `frameworks.py AGENT`, with the endpoint in the environment.

Run by an interpreter that has these packages; `recorded/frameworks.json` keeps what they sent (`record.py`).
"""

import asyncio
import os
import sys

PLAN = "Add 1 and 2."


def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: One.
        b: The other.
    """
    return a + b


async def openai_agents():
    from agents import Agent, Runner, function_tool, set_default_openai_api, set_tracing_disabled

    set_default_openai_api("chat_completions")
    set_tracing_disabled(True)
    agent = Agent(name="Adder", instructions="You add.", tools=[function_tool(add)], model="policy")
    first = await Runner.run(agent, PLAN)
    assert (await Runner.run(agent, [*first.to_input_list(), {"role": "user", "content": "Sure?"}])).final_output


async def pydantic_ai():
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel

    agent = Agent(OpenAIChatModel("policy"), system_prompt="You add.", tools=[add])
    first = await agent.run(PLAN)
    assert (await agent.run("Sure?", message_history=first.all_messages())).output


async def pydantic_ai_anthropic():
    from pydantic_ai import Agent

    agent = Agent("anthropic:policy", system_prompt="You add.", tools=[add])
    first = await agent.run(PLAN)
    assert (await agent.run("Sure?", message_history=first.all_messages())).output


async def langchain():
    from langchain.agents import create_agent
    from langchain_openai import ChatOpenAI

    agent = create_agent(ChatOpenAI(model="policy"), tools=[add], system_prompt="You add.")
    first = await agent.ainvoke({"messages": [{"role": "user", "content": PLAN}]})
    messages = [*first["messages"], {"role": "user", "content": "Sure?"}]
    assert (await agent.ainvoke({"messages": messages}))["messages"][-1].content


async def smolagents_code():
    await asyncio.to_thread(_smolagents, "CodeAgent")


async def smolagents_calls():
    await asyncio.to_thread(_smolagents, "ToolCallingAgent")


def _smolagents(kind):
    import smolagents

    model = smolagents.OpenAIServerModel(
        "policy", api_base=os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"]
    )
    assert getattr(smolagents, kind)([smolagents.tool(add)], model, max_steps=4).run(PLAN)


async def anthropic():
    from anthropic import AsyncAnthropic, beta_async_tool

    @beta_async_tool
    async def add_numbers(a: int, b: int) -> str:
        """Add two numbers.

        Args:
            a: One.
            b: The other.
        """
        return str(a + b)

    messages = [{"role": "user", "content": PLAN}]
    runner = AsyncAnthropic().beta.messages.tool_runner(
        model="policy", max_tokens=2000, tools=[add_numbers], messages=messages
    )
    assert (await runner.until_done()).content


async def litellm():
    from litellm import acompletion

    parameters = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
    tools = [{"type": "function", "function": {"name": "add", "description": "Add.", "parameters": parameters}}]
    messages = [{"role": "user", "content": PLAN}]
    first = (await acompletion(model="openai/policy", messages=messages, tools=tools)).choices[0].message
    messages.append(first)
    messages += [{"role": "tool", "tool_call_id": call.id, "content": "3"} for call in first.tool_calls]
    assert (await acompletion(model="openai/policy", messages=messages, tools=tools)).choices[0].message.content


async def instructor():
    import instructor as package
    from openai import AsyncOpenAI
    from pydantic import BaseModel

    class Sum(BaseModel):
        total: int

    client = package.from_openai(AsyncOpenAI())
    messages = [{"role": "user", "content": PLAN}]
    assert (await client.chat.completions.create(model="policy", messages=messages, response_model=Sum)).total == 3


async def dspy():
    import dspy as package

    package.configure(lm=package.LM("openai/policy", cache=False))
    assert await asyncio.to_thread(lambda: package.ChainOfThought("question -> answer")(question=PLAN).answer)


async def agno():
    from agno.agent import Agent
    from agno.models.openai import OpenAIChat

    agent = Agent(model=OpenAIChat(id="policy"), tools=[add], instructions="You add.", telemetry=False)
    assert (await agent.arun(PLAN)).content


async def strands():
    from strands import Agent, tool
    from strands.models.openai import OpenAIModel

    agent = Agent(
        model=OpenAIModel(model_id="policy"), tools=[tool(add)], system_prompt="You add.", callback_handler=None
    )
    await agent.invoke_async(PLAN)
    await agent.invoke_async("Sure?")


if __name__ == "__main__":
    sys.path[:] = [place for place in sys.path if place and not place.endswith("/tests")]
    asyncio.run(globals()[sys.argv[1]]())
