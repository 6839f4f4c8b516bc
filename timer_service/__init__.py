"""Durable timers for message-driven systems.

Publish a `ScheduleTimer` command, receive a `DueTimeReached` event at its due time: at least once, never early,
under the same id however often it is sent.

The words used everywhere in this package, and nothing else:

tenant        who owns a row; the first part of every key and a token of every subject
timer         one row of `timer_schedules`, keyed (tenant_id, service_call_id)
work item     something of a user's that comes to one status after another
signal        a reminder of what happens to a work item, or of an instant
firing        one cause that makes one signal's trigger come true; leased like a timer
due_at        the promise: the instant the event may first be published; no retry ever moves it
available_at  the one column that says when a row may be claimed: due_at when new, now + visibility timeout when
              claimed, now + backoff after a failed attempt, null once settled for good
claim         take a batch of available rows under a fresh lease
lease         `lease_token` (fresh per claim) + `attempt`; every later write to the row is fenced on the token
fire          publish the event a claimed row stands for
settle        end a claim: complete, retry (backoff), bury (give up, visible) or release (attempt not counted)
outbox        rows that are events to publish, written in the same transaction as the state they announce
relay         the loop claim -> publish -> settle
tick          one bounded pass of a worker
position      where a command stands in its source (stream epoch, sequence); older never overwrites newer
dedupe key    what makes a cause count once
dead letter   an input that can never be handled, kept whole with the reason

Instants are `int` epoch milliseconds named `*_at`; durations are `timedelta`; on the wire both are ISO 8601.
"""
