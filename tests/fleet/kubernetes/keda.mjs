// Validates objects of KEDA's kinds, given as a JSON list on standard input; prints a list of
// problems for each. The validators are compiled from KEDA's own types and let unknown fields pass:
// a field that a validator never looks at is one that it does not know.
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const folder = pathToFileURL(`${process.argv[2]}/node_modules/@kubernetes-models/keda/_schemas/`);

function watched(value, path, unread) {
  if (value === null || typeof value !== "object") return value;
  const below = new Map();
  const keys = new Set(Array.isArray(value) ? [] : Object.keys(value));
  keys.forEach((key) => unread.add(`${path}/${key}`));
  const read = (key) => {
    unread.delete(`${path}/${key}`);
    if (!below.has(key)) below.set(key, watched(value[key], `${path}/${key}`, unread));
    return below.get(key);
  };
  return new Proxy(value, {
    get: (target, key) => (typeof key === "string" && Object.hasOwn(target, key) && key !== "length" ? read(key) : target[key]),
    ownKeys: (target) => { // an open mapping: all its keys are looked at
      keys.forEach((key) => unread.delete(`${path}/${key}`));
      return Reflect.ownKeys(target);
    },
  });
}

const answers = [];
for (const item of JSON.parse(readFileSync(0, "utf8"))) {
  const file = new URL(`ComGithubKedacoreKedaV2ApisKedaV1alpha1${item.kind}.js`, folder);
  const { validate } = await import(file);
  const unread = new Set();
  const problems = [];
  if (!validate(watched(item, "", unread)))
    problems.push(...validate.errors.map((e) => `${e.instancePath} ${e.keyword} ${JSON.stringify(e.params)}`));
  // What lies below an unknown field was never seen at all.
  problems.push(...[...unread].map((path) => `${path} is unknown`));
  answers.push(problems);
}
console.log(JSON.stringify(answers));
