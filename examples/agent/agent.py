"""Adds three numbers with two questions to the model, by OpenAI's client."""

import re

from openai import AsyncOpenAI

shared = AsyncOpenAI(base_url="http://unused", api_key="unused")  # one pool of connections for all attempts


async def run(task, endpoint):
    """One attempt at one prompt, such as 21+32+44=; the run's reward judges the model's last answer."""
    client = shared.with_options(base_url=endpoint.url, api_key=endpoint.key)

    async def ask(question):
        messages = [{"role": "user", "content": question}]
        return (await client.chat.completions.create(model="policy", messages=messages)).choices[0].message.content

    first, second, third = re.findall(r"\d+", task.prompt.messages[-1]["content"])
    numbers = re.findall(r"\d+", await ask(f"{first}+{second}="))
    if numbers:
        await ask(f"{numbers[-1]}+{third}=")
