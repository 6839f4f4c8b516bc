"""Queries and requests of workers: bounded, in turns, answered.

    Broker.serve -> FairQueue.receive -> FairQueue.next -> answer -> RequestSubscription.reply

- `fair_queue`: what waits. It is bounded by count and bytes, tenants take turns, and what waited for too long leaves.
- `query`: four tasks take one query each. It reads committed rows, and computes in slices (`computing`).
- `requests`: one task takes many requests, and applies in one transaction those for which it has room.
- `bodies`: decodes messages and encodes answers. Each message gets an answer: its result, or an error.

A message that finds no room, or waits for too long, is answered with BUSY.
"""
