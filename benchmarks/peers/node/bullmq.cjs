// BullMQ for `bullmq_program`. Reads a JSON object a line: {"store": [[number, due], ...]} or {"work": true}.
// Writes "stored" when jobs are stored, and the number and the instant of each job that is executed.

const { createInterface } = require("node:readline");
const { Queue, Worker } = require("bullmq");

const [host, port, concurrency] = [process.argv[2], Number(process.argv[3]), Number(process.argv[4])];
const connection = { host, port, maxRetriesPerRequest: null };
const queue = new Queue("bench", { connection, defaultJobOptions: { removeOnComplete: true } });
let worker;

const now = () => performance.timeOrigin + performance.now();

async function store(jobs) {
  for (let start = 0; start < jobs.length; start += 500) {
    const portion = jobs.slice(start, start + 500);
    await queue.addBulk(
      portion.map(([number, due]) => ({
        name: "noop",
        data: number,
        opts: due ? { delay: Math.ceil(due - Date.now()) } : {},
      })),
    );
  }
  console.log("stored");
}

async function main() {
  for await (const line of createInterface({ input: process.stdin })) {
    const asked = JSON.parse(line);
    if (asked.store) await store(asked.store);
    else worker = new Worker("bench", async (job) => console.log(job.data, now()), { connection, concurrency });
  }
  await worker?.close();
  await queue.close();
}

main();
