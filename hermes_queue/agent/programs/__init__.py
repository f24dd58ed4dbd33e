"""Agent programs that run in the slot, unmodified.

catalogue.py   programs by name: bundled ones, and your own in a TOML file
conceal.py     a program's environment must not hold what the row is about
definition.py  what the author of a program writes
install.py     the installation as an asset
program.py     how one is installed and started, and where it finds the model
templates.py   placeholders
presets/       the bundled programs and their locks
slot/          scripts that install a program
"""
