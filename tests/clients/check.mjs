// What the sessions of the Node packages share: where the server is, and one sentence for what does not hold.

export const { REEF_URL, REEF_TOKEN, REEF_SCENARIO, REEF_MODEL, REEF_BUSY_MODEL } = process.env;

export const CITY = {
  type: "object",
  properties: { city: { type: "string", enum: ["Paris", "Rome"] } },
  required: ["city"],
  additionalProperties: false,
};

/** Ends the session with the sentence and what was seen instead, unless it holds. */
export function check(holds, sentence, ...seen) {
  if (holds) return;
  console.error(`${sentence}; seen: ${seen.map((value) => JSON.stringify(value) ?? String(value)).join(", ")}`);
  process.exit(1);
}

/** The error of this class that asking raises; `is` tells whether one is of the class. */
export async function raised(name, is, ask) {
  let answer;
  try {
    answer = await ask();
  } catch (error) {
    check(is(error), `${name} was expected`, error?.constructor?.name, String(error));
    return error;
  }
  return check(false, `${name} was expected, not an answer`, answer);
}

/** Every schema that this session forces names one of two cities. */
export function isCity(city) {
  return CITY.properties.city.enum.includes(city);
}
