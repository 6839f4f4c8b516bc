"""Queries and requests of workers: bounded, in turns, answered.

    message -> FairQueue -> worker -> answer

- `fair_queue`: what waits. It is bounded by count and bytes, tenants take turns, and what waited for too long leaves.
- `query`: a worker takes a few queries at a time. Each reads committed rows, and computes in slices (`computing`).
- `requests`: a worker takes many requests at a time, and applies in one transaction those for which it has room.
- `bodies`: decodes messages and encodes answers. Each message gets an answer: its result, or an error.

A message that finds no room, or waits for too long, is answered with BUSY.
"""
