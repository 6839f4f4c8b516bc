"""Other projects in Python, measured for comparison. They are installed in an environment of their own: `make peers`.

The programs run there, so they and `jobs` import nothing of the service.
"""
