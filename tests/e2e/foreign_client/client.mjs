// Schedules a timer, waits for its event and asks for its state, knowing nothing but contracts/.
// node client.mjs BROKER_URL CONTRACTS_FOLDER
import { conformingTo } from "./contracts.mjs";

const [url, contracts] = process.argv.slice(2);
const TENANT = "node-shop";
const PATIENCE_MS = 20_000;
const BROKERS = { "nats:": "./nats.mjs", "redis:": "./redis.mjs", "amqp:": "./rabbitmq.mjs" };

// Each of these modules has a function `connect(url, tenant, eventType)`, which begins to receive the events of this
// type. The result has functions that return promises:
//   send(type, command)  publishes a command, and returns its outcome
//   event()              returns the first event, as { messageId, body }
//   ask(name, query)     returns the reply to a query
//   close()
const { connect } = await import(BROKERS[new URL(url).protocol]);

function within(promise, what) {
  return Promise.race([
    promise,
    new Promise((_, reject) => setTimeout(() => reject(new Error(`no ${what} came`)), PATIENCE_MS).unref()),
  ]);
}

const conforming = conformingTo(contracts);
const broker = await connect(url, TENANT, "due-time-reached");
const command = conforming("schedule-timer", {
  id: "order-4711-payment-1",
  type: "ScheduleTimer",
  tenantId: TENANT,
  correlationId: "order-4711",
  payload: {
    serviceCallId: "order-4711/payment",
    dueAt: new Date(Date.now() + 500).toISOString(),
    data: { amount: 12.5, note: "ü" },
  },
});
const outcome = conforming("command-outcome", await within(broker.send("schedule-timer", command), "outcome"));
const { messageId, body } = await within(broker.event(), "event");
const event = conforming("due-time-reached", body);

async function getTimer(serviceCallId) {
  const query = conforming("get-timer", { serviceCallId });
  return conforming("get-timer-answer", await within(broker.ask("get-timer", query), "reply"));
}

const timer = await getTimer(command.payload.serviceCallId);
const refusal = await getTimer("unknown");
await broker.close();

console.log(JSON.stringify({ command, outcome, event, messageId, timer, refusal }));
