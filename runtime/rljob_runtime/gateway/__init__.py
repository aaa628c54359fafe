"""Gateway: the door of agents to the model. They speak OpenAI's protocol, and every token is the engine's own."""
