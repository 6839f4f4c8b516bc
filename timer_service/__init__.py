"""Durable timers for message-driven systems.

Publish a `ScheduleTimer` command, and receive a `DueTimeReached` event at its due time. The event is published at least
once, never early, and always under the same id.

Each word below has this one meaning in the package:

attempt       the number of times a row was claimed; a released claim does not count
available_at  when a row may be claimed (new: due_at; claimed: end of the lease; retried: after a backoff), else null
blocked       waiting for a lock of another session, or for a statement that takes too long
bury          give a row up after too many attempts; it stays in the table with the reason
cause         the command that led to an event: its id, correlation id and trace
claim         take a batch of available rows under a new lease
command       a request to change something, applied in a transaction
command time  when the broker stored a command; it is the same at each delivery
consumer      the part that handles commands, each part of a batch in one transaction or more
cursor        the end of a page of a list; of a schedule: the instant up to which all slots are fired or skipped
dead letter   a command that can never be handled, stored whole with the reason
dedupe key    identifies the cause of a firing, so that one cause fires a signal once
defer         leave a command of a transaction to a later one, because the transaction has enough work
definition    the trigger and the note of a signal, or the recurrence and the data of a schedule, from its command
delivery      one command as the broker hands it over; acknowledged, retried or terminated, once
due_at        the earliest instant at which an event may be published; no retry changes it
epoch         the creation time of a command stream; a recreated stream has a later one
event         something that happened, published to its tenant
fire          publish the event of a timer or firing
firing        a record that the trigger of a signal became true once; leased like a timer
group         jobs of a run that are named later, by a ResolveGroup
health        whether the broker or the database can be used, and the reason if not
hint          a message to other instances: a loop has work at an instant; it may be lost
job           one node of a run; it becomes ready, then its status is reported
lease         `lease_token` (new for each claim) and `attempt`; every later write to the row checks the token
loop          runs the passes of one worker and sleeps in between
need          an edge of a run: a job needs another job, its upstream, or a group
outbox        the table of events to publish, written in the transaction that caused them
outcome       how one command ended, for example `scheduled`
pass          one bounded tick of a worker; it returns how many rows it handled and when the next pass has work
pending       delivered before its run or job is known, and kept until then (of a command)
position      where a command is in its stream: (epoch, sequence); an older command never overwrites a newer one
put back      return a delivery that was not handled yet to the subscription, which hands it out again
ready         all needs of a job are met, so the users' workers may execute it (event JobReady)
recurrence    a cron expression in a time zone, or a distance; it names slots, whether or not anything fires
relay         the worker that claims rows, publishes their events and settles the rows
release       end a claim as if it had not been made
requeue       return a buried row to state Waiting
retry         end a claim after a failure; the row is available again after a backoff
run           a graph of jobs, executed by the users' workers
schedule      a recurrence and what it fires, keyed (tenant_id, schedule_id)
settle        end a claim: complete, retry, bury or release
signal        a reminder that fires on a transition of a work item, or at an instant
skipped       the status of a job that cannot run because of the status of an upstream job
slice         one kind of thing the service handles, in its own folder: timers, signals, schedules, runs, events
slot          an instant of a recurrence; (tenant, schedule, slot) identifies a firing of a schedule
sweep         the worker that checks runs without waiting for a command
tenant        the owner of a row; the first part of every key and a token of every subject
timer         one row of `timer_schedules`, keyed (tenant_id, service_call_id)
tombstone     a row for a timer, signal, schedule or run that does not exist; it keeps the position of an early command
transition    the change of a work item's status
wake          tell a loop that it has work at an instant
work item     something that belongs to a user and has a status

Instants are `int` Unix milliseconds named `*_at`; durations are `timedelta`. On the wire both are ISO 8601.
"""

__version__ = "0.1.0"
