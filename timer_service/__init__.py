"""Durable timers for message-driven systems.

Publish a `ScheduleTimer` command, receive a `DueTimeReached` event at its due time: at least once, never early,
under the same id however often it is sent.

The words used everywhere in this package, and nothing else:

tenant        who owns a row; the first part of every key and a token of every subject
timer         one row of `timer_schedules`, keyed (tenant_id, service_call_id)
work item     something of a user that comes to one status after another
transition    a work item came to another status
signal        a reminder of what happens to a work item, or of an instant
firing        one cause that makes one signal's trigger come true; leased like a timer
run           a graph of jobs, which the users' workers execute
job           one node of a run: it becomes ready (its JobReady), then its status is reported
need          an edge: a job waits for another job, or for a group
group         jobs of a run that are named later, by a ResolveGroup
pending       a command that was delivered before its run or its job is known, and is kept until then
sweep         the worker that looks after runs that no command moves
slice         one kind of thing the service handles, in a folder of its own: timers, signals, runs, events
outcome       how one command ended
due_at        the promise: the instant the event may first be published; no retry ever moves it
available_at  the one column that says when a row may be claimed: due_at when new, now + visibility timeout when
              claimed, now + backoff after a failed attempt, null once settled for good
claim         take a batch of available rows under a fresh lease
lease         `lease_token` (fresh per claim) + `attempt`; every later write to the row is fenced on the token
fire          publish the event a claimed row stands for
settle        end a claim: complete, retry (backoff), bury (give up, visible) or release (attempt not counted)
outbox        rows that are events to publish, written in the same transaction as the state they announce
relay         the loop claim -> publish -> settle
pass          what one bounded tick of a worker did, and when it wants the next one
position      where a command stands in its source (stream epoch, sequence); older never overwrites newer
dedupe key    what makes a cause count once
dead letter   an input that can never be handled, kept whole with the reason

Instants are `int` epoch milliseconds named `*_at`; durations are `timedelta`; on the wire both are ISO 8601.
"""

__version__ = "0.1.0"
