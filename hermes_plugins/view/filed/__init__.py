"""One HTML file with trajectories in it, which needs no server.

        contents.py  the answers that the file holds
    document.py  the file: script, data, and the policy that both are under

What records hold is data in the file, in an element that no browser runs, and becomes text on the
page as it does with a server.
"""
