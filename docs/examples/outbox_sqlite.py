"""Stores an order and its command in one transaction of sqlite3, without an event loop. docs/outbox.md says more."""

import sqlite3
from datetime import timedelta

from timer_service.client.outbox import Outbox, run_sync

outbox = Outbox()
connection = sqlite3.connect("shop.db")
connection.execute("CREATE TABLE IF NOT EXISTS orders (name TEXT PRIMARY KEY)")
run_sync(outbox.create_table(connection))

with connection:  # a transaction
    connection.execute("INSERT INTO orders (name) VALUES ('order-3')")
    run_sync(outbox.on(connection).timers.schedule("acme", "order-3", due_in=timedelta(hours=2)))
