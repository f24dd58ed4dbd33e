"""Parts of the software-engineering env.

calls.py       tool calls of scripted agents
item.py        one dataset row, validated
patch.py       the agent's result as a patch, sorted into kept and dropped
paths.py       paths as rows and patches name them
recipe.py      a bug as byte edits
repository.py  bare repositories that no agent can write
sources.py     trusted sources: pinned sdists and git remotes
workspace.py   the trees of a task, and how one gets into a slot
bugs/          making rows: small bugs that a package's tests notice
cheats/        ways to a score without the fix, for tests of grading
grading/       tests run against the agent's tree, and the verdict
package/       what a repository says of its own package
"""
