"""The agent loop and the chat clients it talks to."""
