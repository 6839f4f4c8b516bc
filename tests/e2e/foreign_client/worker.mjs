// Executes workflows of the type "greet", whose function has one step. It knows nothing but contracts/.
// node worker.mjs BROKER_URL CONTRACTS_FOLDER TENANT COUNT
// Prints a line of JSON for each event, and stops after COUNT tasks.
import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import { connect } from "@nats-io/transport-node";
import { conformingTo } from "./contracts.mjs";

const [url, contracts, tenant, count] = process.argv.slice(2);
const workerId = randomUUID();
const TYPE = "greet";
const STEP = "greet";
const SLOTS = 10;
const LEASE_MS = 10_000;
const WAIT_MS = 10_000;
const RENEW_MS = 200; // a third of the lease would do, but the test would take longer
const PATIENCE_MS = 3_000;

const conforming = conformingTo(contracts);
const connection = await connect({ servers: url });

function print(event) {
  console.log(JSON.stringify(event));
}

// Returns the reply to a request. Repeats the same bytes until there is one.
async function request(name, body, patienceMs = PATIENCE_MS) {
  const bytes = JSON.stringify(conforming(name, body));
  for (let delay = 100; ; delay = Math.min(2 * delay, 2_000)) {
    const answer = await connection
      .request(`timer.wrk.v1.${tenant}.${name}`, bytes, { timeout: patienceMs })
      .catch(() => null); // no reply in time, or no service
    if (answer !== null) {
      const reply = conforming(`${name}-answer`, answer.json());
      if (reply.error === undefined) {
        return reply;
      }
      if (!["BUSY", "INTERNAL"].includes(reply.error.code)) {
        throw new Error(`${name}: ${reply.error.code}: ${reply.error.message}`);
      }
    }
    await sleep(delay * (0.5 + Math.random() / 2));
  }
}

function poll(slots) {
  const wanted = { workerId, name: "node", types: [TYPE], slots, waitMs: slots > 0 ? WAIT_MS : 0, leaseMs: LEASE_MS };
  return request("poll-tasks", wanted, WAIT_MS + 5_000);
}

// A task of this worker. `lost` is aborted when the task is no longer this worker's.
class Task {
  #number = 0;
  #lost = new AbortController();
  #leaseUntil = performance.now() + LEASE_MS;

  constructor(view) {
    this.workflowId = view.workflowId;
    this.input = view.input;
    this.effects = view.effects;
    this.held = { workflowId: view.workflowId, token: view.token };
  }

  get lost() {
    return this.#lost.signal;
  }

  // Sends the next report, and returns its outcome.
  async report(then, more = {}) {
    this.#number += 1;
    const report = { ...this.held, number: this.#number, ...more, then };
    const { reports } = await request("report-tasks", { workerId, reports: [report] });
    print({ workflowId: this.workflowId, outcome: reports[0].outcome });
    if (["lost", "conflict"].includes(reports[0].outcome)) {
      this.#lost.abort();
    }
    return reports[0];
  }

  // Renews the lease until `ended` is aborted or the task is lost.
  async renew(ended) {
    while (!ended.aborted && !this.lost.aborted) {
      const sent = performance.now();
      const renewing = request("renew-tasks", { workerId, tasks: [this.held] });
      const reply = await Promise.race([renewing, sleep(this.#leaseUntil - sent, null, { ref: false })]);
      if (ended.aborted) {
        return; // the task was reported meanwhile, so the service does not know it any more
      }
      if (reply === null || reply.lost.some((each) => each.token === this.held.token)) {
        this.#lost.abort(); // another worker may have the task, or the workflow was cancelled
      } else {
        this.#leaseUntil = sent + LEASE_MS;
        print({ workflowId: this.workflowId, renewed: true });
        await sleep(RENEW_MS);
      }
    }
  }
}

// The step. It fails in its first attempts, or does not end, if the input says so.
async function greet(input, attempt, lost) {
  if (attempt <= (input.failures ?? 0)) {
    throw new Error(`attempt ${attempt} fails`);
  }
  if (input.hangs) {
    await new Promise((_, reject) => lost.addEventListener("abort", () => reject(new Error("the task is lost"))));
  }
  return `Hello, ${input.name}`;
}

// Runs the function of the workflow: it awaits the step, and returns the greeting.
async function execute(task) {
  let stored = task.effects.find((effect) => effect.key === STEP) ?? { status: "open" };
  while (stored.status === "open") {
    await sleep(stored.startInMs ?? 0);
    const attempt = (stored.failures ?? 0) + 1;
    print({ workflowId: task.workflowId, attempt });
    try {
      const result = await greet(task.input, attempt, task.lost);
      const seen = [{ key: STEP, seq: 1 }];
      await task.report({ action: "complete", result: { greeting: result } }, { steps: [{ key: STEP, attempt, result }], seen });
      return;
    } catch (problem) {
      if (task.lost.aborted) {
        return;
      }
      const error = { type: problem.name, message: problem.message };
      const { failedSteps } = await task.report({ action: "continue" }, { steps: [{ key: STEP, attempt, error }] });
      if (task.lost.aborted) {
        return;
      }
      const { startInMs } = failedSteps[0];
      stored = { status: startInMs === undefined ? "failed" : "open", failures: attempt, startInMs, error };
    }
  }
  const seen = stored.seq === undefined ? { seen: [{ key: STEP, seq: 1 }] } : {};
  const end =
    stored.status === "done"
      ? { action: "complete", result: { greeting: stored.result } }
      : { action: "fail", error: stored.error, step: STEP };
  await task.report(end, seen);
}

async function run(task) {
  const ended = new AbortController();
  const renewing = task.renew(ended.signal);
  await execute(task);
  ended.abort();
  await renewing;
  if (task.lost.aborted) {
    print({ workflowId: task.workflowId, lost: true });
  }
}

let left = Number(count);
const running = new Set();
while (left > 0) {
  const { tasks } = await poll(SLOTS - running.size);
  for (const view of tasks) {
    const task = new Task(view);
    const ending = run(task).finally(() => {
      running.delete(ending);
      left -= 1;
      if (left === 0) {
        poll(0); // ends the held poll
      }
    });
    running.add(ending);
  }
}
await connection.drain();
