"""The model endpoint of a program that runs in a slot: every call is answered and recorded.

calls.py     one call in terms that all APIs share, its answer, and who gives it
opening.py   opens a server without holding up the event loop
server.py    HTTP: paths, the key, limits, one call from its body to its delivery
bounds.py    how much the requests of one session may take
intake.py    requests as they come in
delivery.py  what goes out: signs of life, the answer, whether it was taken
memory.py    conversations that `previous_response_id` continues
dialects/    the APIs that programs speak
"""
