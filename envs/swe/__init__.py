"""Parts of the software-engineering env.

calls.py       tool calls of scripted agents
evaluations.py rows on which nothing may be trained
item.py        one dataset row, validated
patch.py       the agent's changes as a patch, sorted into kept and dropped
paths.py       paths in rows and patches
recipe.py      a bug as byte edits
recorded.py    the agent's patch out of a record, for a regrade
repository.py  bare repositories that agents cannot write to
sources.py     trusted sources: pinned sdists and git remotes
taken.py       the agent's patch, for the worker that grades it
workspace.py   the trees of a task, and copying one into a slot
bugs/          makes rows: small bugs that a package's own tests detect
cheats/        attempts to score without the fix, for tests of grading
images/        rows whose repository and environment are an image
grading/       runs tests on the agent's tree and reaches the verdict
package/       facts about a repository's package
"""
