"""`environment/docker-compose.yaml` of a task: services beside its box.

reader.py     the file, checked, as the services of a slot with their volumes
document.py   YAML within bounds, variables filled in
models.py     the keys that are used
refused.py    the keys that no service here can have
"""
