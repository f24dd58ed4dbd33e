"""Tasks in the shape of endless-terminals, made into Harbor tasks when they are read.

definition.py  container.def (Apptainer) as a Dockerfile
convert.py     the whole folder
"""
