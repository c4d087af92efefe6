"""Agents by the clients of OpenAI, Anthropic and litellm: `clients.py CLIENT`, with the endpoint in the environment.

Run by an interpreter that has these clients; `recorded/` keeps what they sent (`record.py`).
"""

import asyncio
import os
import sys

TOOL = {"name": "add", "description": "Add.", "parameters": {"type": "object", "properties": {
    "a": {"type": "integer"}, "b": {"type": "boolean"}}}}  # fmt: skip
PLAN, MORE = "Add 1 and 2, twice.", "And without tools?"


async def by_openai():
    from openai import AsyncOpenAI

    client = AsyncOpenAI()
    await by_completions(client.chat.completions.create)


async def by_litellm():
    import litellm

    async def create(**fields):
        return await litellm.acompletion(**{**fields, "model": "openai/policy"})

    await by_completions(create)


async def by_completions(create):
    tools = [{"type": "function", "function": TOOL}]
    messages = [{"role": "system", "content": "You add."}, {"role": "user", "content": PLAN}]
    first = (await create(model="policy", messages=messages, tools=tools)).choices[0].message
    messages.append(first.model_dump(exclude_none=True))
    for call in first.tool_calls or []:
        messages.append({"role": "tool", "tool_call_id": call.id, "content": "3"})

    async def helper(number):
        own = [{"role": "user", "content": f"Help with part {number}."}]
        own.append((await create(model="policy", messages=own)).choices[0].message.model_dump(exclude_none=True))
        await create(model="policy", messages=[*own, {"role": "user", "content": MORE}])

    text = ""
    async for chunk in await create(model="policy", messages=messages, tools=tools, stream=True):
        text += "".join(choice.delta.content or "" for choice in chunk.choices)
    messages.extend([{"role": "assistant", "content": text}, {"role": "user", "content": MORE}])
    last = create(model="policy", messages=messages, tools=tools, tool_choice="none")
    await asyncio.gather(helper(1), helper(2), last)
    await create(model="policy", messages=[messages[0], {"role": "user", "content": "Summary: 3 and 3."}], tools=tools)


async def by_anthropic():
    from anthropic import AsyncAnthropic

    client = AsyncAnthropic()
    tools = [{"name": TOOL["name"], "description": TOOL["description"], "input_schema": TOOL["parameters"]}]
    common = {"model": "policy", "max_tokens": 2000}
    messages = [{"role": "user", "content": PLAN}]
    first = await client.messages.create(messages=messages, system="You add.", tools=tools, **common)
    messages.append({"role": "assistant", "content": [block.model_dump() for block in first.content]})
    results = [{"type": "tool_result", "tool_use_id": block.id, "content": "3"}
               for block in first.content if block.type == "tool_use"]  # fmt: skip
    messages.append({"role": "user", "content": results})
    async with client.messages.stream(messages=messages, system="You add.", tools=tools, **common) as stream:
        second = await stream.get_final_message()
    messages.append({"role": "assistant", "content": [b.model_dump() for b in second.content if b.type == "text"]})
    messages.append({"role": "user", "content": [{"type": "text", "text": MORE}]})

    async def helper(number):
        own = [{"role": "user", "content": f"Help with part {number}."}]
        answer = await client.messages.create(messages=own, **common)
        own += [{"role": "assistant", "content": answer.content}, {"role": "user", "content": MORE}]
        await client.messages.create(messages=own, **common)

    none = {"type": "none"}
    last = client.messages.create(messages=messages, system="You add.", tools=tools, tool_choice=none, **common)
    await asyncio.gather(helper(1), helper(2), last)
    summary = [{"role": "user", "content": "Summary: 3 and 3."}]
    await client.messages.create(messages=summary, system="You add.", tools=tools, **common)


async def by_openai_agents():
    from agents import Agent, Runner, function_tool, set_default_openai_api, set_tracing_disabled

    set_default_openai_api("chat_completions")
    set_tracing_disabled(True)

    @function_tool
    def add(a: int, b: bool) -> int:
        """Add."""
        return 3

    agent = Agent(name="Adder", instructions="You add.", tools=[add], model="policy")
    result = await Runner.run(agent, PLAN)
    history = [*result.to_input_list(), {"role": "user", "content": MORE}]
    result = Runner.run_streamed(agent, history)
    async for _ in result.stream_events():
        pass
    assert result.final_output


async def by_pydantic_ai():
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel

    model = OpenAIChatModel("policy")
    agent, helper = Agent(model, system_prompt="You add."), Agent(model)

    @agent.tool_plain
    def add(a: int, b: bool) -> int:
        """Add."""
        return 3

    first = await agent.run(PLAN)

    async def goes_on():
        async with agent.run_stream(MORE, message_history=first.all_messages()) as streamed:
            assert await streamed.get_output()

    async def helps(number):
        own = await helper.run(f"Help with part {number}.")
        assert (await helper.run(MORE, message_history=own.all_messages())).output

    await asyncio.gather(goes_on(), helps(1), helps(2))


async def by_smolagents():
    from smolagents import OpenAIServerModel, ToolCallingAgent, tool

    @tool
    def add(a: int, b: bool) -> int:
        """Add.

        Args:
            a: One.
            b: Other.
        """
        return 3

    url, key = os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"]
    model = OpenAIServerModel("policy", api_base=url, api_key=key)
    agent = ToolCallingAgent([add], model, max_steps=2)
    assert await asyncio.to_thread(agent.run, PLAN)


if __name__ == "__main__":
    asyncio.run(globals()[f"by_{sys.argv[1]}"]())
