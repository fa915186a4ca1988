"""The app next to this file is run by Flower, not by pytest."""

collect_ignore = ["client_side.py", "server_side.py"]
