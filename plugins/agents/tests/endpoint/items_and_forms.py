"""Agents that ask the Responses API, or for answers of a form: `items_and_forms.py AGENT`, with the endpoint in the
environment.

Run by an interpreter that has the package; `recorded/items_and_forms.json` keeps what they sent.
"""

import asyncio
import os
import sys

from pydantic import BaseModel

PLAN, MORE, ASK = "Add 1 and 2.", "Sure?", "How many people live in this city?"


class City(BaseModel):
    """A city."""

    city: str
    people: int


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def check(found):
    assert (found.city, found.people) == ("Paris", 2), found


async def openai_agents():
    from agents import Agent, Runner, function_tool, set_tracing_disabled

    set_tracing_disabled(True)
    agent = Agent(name="Adder", instructions="You add.", tools=[function_tool(add)], model="policy")
    result = await Runner.run(agent, PLAN)
    result = Runner.run_streamed(agent, [*result.to_input_list(), {"role": "user", "content": MORE}])
    async for _ in result.stream_events():
        pass
    assert (await Runner.run(agent, MORE, previous_response_id=result.last_response_id)).final_output


async def pydantic_ai():
    from pydantic_ai import Agent

    agent = Agent("openai:policy", instructions="You add.", tools=[add])
    first = await agent.run(PLAN)
    async with agent.run_stream(MORE, message_history=first.all_messages()) as streamed:
        assert await streamed.get_output()


async def langchain():
    from langchain.agents import create_agent
    from langchain_openai import ChatOpenAI

    agent = create_agent(ChatOpenAI(model="policy", use_responses_api=True), [add], system_prompt="You add.")
    first = await agent.ainvoke({"messages": [{"role": "user", "content": PLAN}]})
    messages = [*first["messages"], {"role": "user", "content": MORE}]
    assert (await agent.ainvoke({"messages": messages}))["messages"][-1].text


async def agno():
    from agno.agent import Agent
    from agno.models.openai import OpenAIResponses

    agent = Agent(model=OpenAIResponses(id="policy"), tools=[add], instructions="You add.", telemetry=False)
    assert (await agent.arun(PLAN)).content


async def strands():
    from strands import Agent, tool
    from strands.models.openai_responses import OpenAIResponsesModel

    model = OpenAIResponsesModel(client_args={}, model_id="policy")
    agent = Agent(model, tools=[tool(add)], system_prompt="You add.", callback_handler=None)
    await agent.invoke_async(PLAN)
    assert str(await agent.invoke_async(MORE))


async def litellm():
    import litellm

    function = {"type": "function", "name": "add", "description": "Add two numbers.", "parameters": {"type": "object"}}
    common = {"model": "openai/policy", "instructions": "You add.", "tools": [function]}
    first = await litellm.aresponses(input=PLAN, **common)
    results = [{"type": "function_call_output", "call_id": item.call_id, "output": "3"}
               for item in first.output if item.type == "function_call"]  # fmt: skip
    items = [{"role": "user", "content": PLAN}, *[item.model_dump() for item in first.output], *results]
    assert (await litellm.aresponses(input=items, **common)).output


async def openai_form():
    from openai import AsyncOpenAI

    client = AsyncOpenAI()
    messages = [{"role": "user", "content": ASK}]
    common = {"model": "policy", "response_format": City}
    message = (await client.chat.completions.parse(messages=messages, **common)).choices[0].message
    check(message.parsed)
    messages += [message.model_dump(exclude={"parsed"}), {"role": "user", "content": MORE}]
    async with client.chat.completions.stream(messages=messages, **common) as stream:
        check((await stream.get_final_completion()).choices[0].message.parsed)


async def openai_items_form():
    from openai import AsyncOpenAI

    client = AsyncOpenAI()
    first = await client.responses.parse(model="policy", input=ASK, text_format=City)
    check(first.output_parsed)
    common = {"model": "policy", "input": MORE, "text_format": City}
    async with client.responses.stream(previous_response_id=first.id, **common) as stream:
        check((await stream.get_final_response()).output_parsed)


async def anthropic_form():
    from anthropic import AsyncAnthropic

    messages = [{"role": "user", "content": ASK}]
    answer = await AsyncAnthropic().messages.parse(
        model="policy", max_tokens=900, messages=messages, output_format=City
    )
    check(answer.parsed_output)


async def langchain_form():
    from langchain_openai import ChatOpenAI

    check(await ChatOpenAI(model="policy").with_structured_output(City).ainvoke(ASK))


async def langchain_agent_form():
    from langchain.agents import create_agent
    from langchain.agents.structured_output import ProviderStrategy
    from langchain_openai import ChatOpenAI

    agent = create_agent(ChatOpenAI(model="policy"), [add], response_format=ProviderStrategy(City))
    check((await agent.ainvoke({"messages": [{"role": "user", "content": f"{PLAN} {ASK}"}]}))["structured_response"])


async def pydantic_ai_form():
    from pydantic_ai import Agent, NativeOutput

    check((await Agent("openai-chat:policy", output_type=NativeOutput(City), tools=[add]).run(f"{PLAN} {ASK}")).output)


async def openai_agents_form():
    from agents import Agent, Runner, function_tool, set_tracing_disabled

    set_tracing_disabled(True)
    agent = Agent(name="A", tools=[function_tool(add)], instructions="You add.", output_type=City, model="policy")
    check((await Runner.run(agent, f"{PLAN} {ASK}")).final_output)


async def instructor_form():
    import instructor

    client = instructor.from_provider("openai/policy", async_client=True, mode=instructor.Mode.JSON)
    check(await client.create(model="policy", messages=[{"role": "user", "content": ASK}], response_model=City))


async def dspy_form():
    """Its first answer misses the form of dspy's own."""
    import dspy

    dspy.configure(lm=dspy.LM("openai/policy", cache=False))
    check(await dspy.Predict("question -> city: str, people: int").acall(question=ASK))


async def agno_form():
    from agno.agent import Agent
    from agno.models.openai import OpenAIChat

    check((await Agent(model=OpenAIChat(id="policy"), output_schema=City, telemetry=False).arun(ASK)).content)


async def strands_form():
    from strands import Agent
    from strands.models.openai import OpenAIModel

    agent = Agent(OpenAIModel(client_args={}, model_id="policy"), callback_handler=None)
    check(await agent.structured_output_async(City, ASK))


async def smolagents_form():
    from smolagents import CodeAgent, OpenAIServerModel

    model = OpenAIServerModel("policy", api_base=os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"])
    agent = CodeAgent([], model, max_steps=2, use_structured_outputs_internally=True)
    assert await asyncio.to_thread(agent.run, ASK) == "Paris"


if __name__ == "__main__":
    asyncio.run(globals()[sys.argv[1]]())
