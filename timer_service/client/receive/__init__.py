"""Receiving every event: a durable consumer, and an app that calls handlers (see docs/receive.md).

    broker -> the `Source` of its adapter: take, acknowledge    see link.py
                  |
               Delivery                                    one event in this process, until it is settled
                  |
               runner: which deliveries run now            concurrency, order, suspects, the stop
                  |
               attempt: what becomes of one event          seen? call the handler, then mark, retry or park
                  |
               handlers: which function gets the event

What a crash does at each point of an event: before the acknowledgement the broker delivers the event again, after
`ack_wait`. If its handler had returned, it runs again, unless the event was marked in a seen store.
"""
