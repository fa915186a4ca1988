"""What tests share: slow and obvious implementations to compare with, settings to try, and checks that are also run on faulty code.

pytest finds it by `pythonpath` in pyproject.toml; a script of it is started by its path.
"""
