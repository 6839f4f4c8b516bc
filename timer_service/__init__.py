"""Durable timers for message-driven systems.

Publish a `ScheduleTimer` command, and receive a `DueTimeReached` event at its due time. The event is published at least
once, never early, and always under the same id.

Each word below has this one meaning in the package:

allowance     the bytes of events that a tenant may publish, if it has the limit `published_events`
always        of a job: it runs however the jobs it needs end, and also if its run is cancelled or rejected
attempt       the number of times a row was claimed; a released claim does not count; of a run: 1, and one more for
              each RetryRun
available_at  when a row may be claimed (new: due_at; claimed: end of the lease; retried: after a backoff), else null
backfill      one row of `schedule_backfills`: a BackfillSchedule that has not ended, and how far it is
blocked       waiting for a lock of another session, or for a statement that takes too long
bury          give a row up after too many attempts; it stays in the table with the reason
busy          of a concurrency key: as many workflows with it are started as the limit says, or others are queued
cancellation  one row of `timer_cancellations`: a CancelTimers, and how far its pass over the timers is
catch up      fire slots that are late; the policy of a schedule says which ones
cause         the command that led to an event: its id, correlation id and trace
claim         take a batch of available rows under a new lease
command       a request to change something, applied in a transaction
command log   the commands of all tenants, in the order in which the broker stored them
command time  when the broker stored a command, by the broker's clock
cursor        where the next step continues: the reader after the commands that were read, a list after the end of a
              page, a schedule after the slots that are done
dead letter   a command that can never be handled, published whole with the reason, like an event
dedupe key    identifies the cause of a firing, so that one cause fires a signal once
defer         leave a command of a transaction to a later one, because the transaction has enough work; it waits
definition    the trigger and the note of a signal, or the values of a schedule, from the command that set them
due           may fire from now on; a slot is due at its instant, or later by its jitter
due_at        the earliest instant at which an event may be published; no retry changes it
effect        a step, a sleep or a wait for a message of a workflow; its key is its name and a number
epoch         the number of a command log, from its creation time; another log, or one rolled back, has a greater one
expire        fire at or after the expiry (`expires_at`) of a timer: its event is TimerExpired
event         something that happened, published to its tenant
fire          publish the event of a timer, a firing or a slot
firing        a record that the trigger of a signal became true once
group         jobs of a run that are named later, by a ResolveGroup
health        whether the broker or the database can be used, and the reason if not
hint          a message to other instances: a loop has work at an instant; it may be lost
jitter        a delay of a slot, derived from its key; it spreads slots of many schedules
job           one node of a run; it becomes ready, then its status is reported
lane          (tenant, queue, type): the unit in which workers get workflows
late          due, and not fired yet
lease         `lease_token` (new for each claim) and `attempt`; every later write to the row checks the token
loop          runs the passes of one worker and sleeps in between
message       of a workflow: data that is stored until the workflow waits for a message of this name
need          an edge of a run: a job needs another job, its upstream, or a group
outbox        the table of events to publish, written in the transaction that caused them; dead letters have one too;
              of a user: a table of commands to send, in the user's own database
outcome       how one command ended, for example `scheduled`
park          of an event: store it because its consumer gave it up; of a workflow: end a task, as every branch waits
pass          one bounded tick of a worker; it returns how many rows it handled and when the next pass has work
pending       published before its run or job is known, and kept until then (of a command)
policy        which late slots of a schedule fire: `last`, `skip` or `all`
poll          of a worker: a request for a task, held until there is one; of a loop: a pass although nothing woke it
position      where a command is in the command log: (epoch, sequence)
reader        the part that reads the command log and applies the commands; one process at a time has it
ready         all needs of a job are met, so the users' workers may execute it (event JobReady)
recurrence    a cron expression or a calendar interval in a zone, or a fixed interval; it names slots
relay         the worker that claims rows, publishes their events and settles the rows
release       end a claim as if it had not been made
requeue       return a buried row to state Waiting
resubmit      publish a parked event again to its consumer; of a dead letter: send the command again
retry         end a claim after a failure; the row is available again after a backoff; of a run: run failed jobs again
run           a graph of jobs, executed by the users' workers
schedule      a recurrence and what it fires; one row of `schedules`, keyed (tenant_id, schedule_id)
settle        end a claim: complete, retry, bury or release
signal        a reminder that fires on a transition of a work item, or at an instant
skipped       of a job: it cannot run because of the status of an upstream job; of a slot: it was late and never fires
slice         one kind of thing the service handles, in its own folder: timers, signals, schedules, workflows, runs,
              events
slot          an instant of a recurrence; (tenant, schedule, slot) identifies the event of a slot
sweep         the worker that checks runs without waiting for a command
tenant        the owner of a row; the first part of every key and a token of every subject
task          a claimed workflow as it is sent to a worker of the user; of a signal: the follow-up of a firing
timer         one row of `timer_schedules`, keyed (tenant_id, service_call_id)
tombstone     a row for a schedule that does not exist; it keeps the cursor of a deleted one, or a pause for a later one
topic         of a timer or schedule: the last part of the address of its events, by which consumers choose among them
transition    the change of a work item's status
waiting       of a command: read from the log, stored, and applied later in turns between the tenants
wake          tell a loop that it has work at an instant
worker        an object that does work in passes; of workflows: a process of the user that executes them
work item     something that belongs to a user and has a status
workflow      one row of `workflows`, keyed (tenant_id, workflow_id): an execution of the function of a type

Instants are `int` Unix milliseconds named `*_at`; durations are `timedelta`. On the wire both are ISO 8601.
"""

__version__ = "0.1.0"
