// Checks of messages against contracts/.
import { readFileSync } from "node:fs";
import { join } from "node:path";
import Ajv2020 from "ajv/dist/2020.js";
import addFormats from "ajv-formats";

// Returns a function that returns a message if it conforms to its schema in a folder, and throws otherwise.
export function conformingTo(contracts) {
  const ajv = new Ajv2020({ strict: false });
  addFormats(ajv);
  const compiled = new Map();
  return (message, body) => {
    if (!compiled.has(message)) {
      compiled.set(message, ajv.compile(JSON.parse(readFileSync(join(contracts, "schemas", `${message}.v1.json`), "utf8"))));
    }
    const validate = compiled.get(message);
    if (!validate(body)) {
      throw new Error(`${message}: ${ajv.errorsText(validate.errors)}`);
    }
    return body;
  };
}
