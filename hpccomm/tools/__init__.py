"""The command line: `main` finds the verb, and each verb has a module.

A module's docstring is the help of its verb. A verb parses flags, calls the package that does the
work, and prints the result.
"""
