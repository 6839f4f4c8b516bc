"""The operations page: what an instance and its database know, for operators. It reads only.

A request flows one way: parameters (`parameters.py`) -> a view (`views/`), which reads through the queries of the
slices (`reads.py`), statements over all tenants (`rows.sql`, `tenants.sql`) and the samples of the last hour
(`samples.py`) -> a `Content` -> a template -> a response (`pages.py`).

- Each list is one page of a query, with a cursor. Each statement has a limit and an index (`tests/plans`).
- Reading and rendering share the event loop with the service, so they compute in slices (`core/computing.py`).
- Templates escape every value, and show characters that are invisible or change the writing direction as escapes.
"""
