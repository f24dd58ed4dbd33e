"""Commands in a container that is a slot, whoever runs the container."""
