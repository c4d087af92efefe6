"""The program `endpoint` for slime: trains an agent program that speaks the OpenAI or the Anthropic API, by its URL."""
