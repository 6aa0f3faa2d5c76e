// How a reader chose to see the rows of layers, and the short text that the address keeps of it.

export const PLAIN = Object.freeze({
  isWorstFirst: false, // else in the model's order
  isTable: false, // else a heat map
  unfolded: "some", // at first: all, none, or as many as there is room for
  turned: [], // prefixes that are folded where the others of their kind are not, or the other way round
  find: "", // a part of the names
});

const LETTERS = { w: { isWorstFirst: true }, t: { isTable: true }, a: { unfolded: "all" }, n: { unfolded: "none" } };

// Signs that an address leaves as they are: parts stand between "~".
export function textOf(view) {
  const parts = Object.keys(LETTERS).filter((letter) => Object.entries(LETTERS[letter]).every(([name, value]) => view[name] === value));
  if (view.find) parts.push(`f-${coded(view.find)}`);
  return [...parts, ...view.turned.map((prefix) => `o-${coded(prefix)}`)].join("~");
}

// What is not understood is left out: an address may be old, or written by hand.
export function viewOf(text) {
  const view = { ...PLAIN };
  for (const part of (text ?? "").split("~")) {
    const rest = decoded(part.slice(2));
    if (part in LETTERS) Object.assign(view, LETTERS[part]);
    else if (part.startsWith("f-")) view.find = rest;
    else if (part.startsWith("o-") && rest) view.turned = [...view.turned, rest];
  }
  return view;
}

// The view with a prefix folded or unfolded.
export function turned(view, prefix) {
  const others = view.turned.filter((one) => one !== prefix);
  return { ...view, turned: others.length < view.turned.length ? others : [...others, prefix] };
}

const coded = (text) => encodeURIComponent(text).replaceAll("~", "%7E");

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return "";
  }
}
