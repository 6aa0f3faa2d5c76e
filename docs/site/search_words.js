// The site's search finds sections by lunr; this file says in which order a reader sees them. lunr adds up how often a
// word occurs, so a long page about everything wins. Here a section counts that has the rare words of the question,
// in its heading before its text, and next to each other as in the question. A message that the text quotes is a heading
// for who pasted it: other programs print the same in other words. What people type before they know the answer
// (asked.yml) counts as much as the text.
const fillers = new Set(
  ("a about all also am an and another any anybody anyone are as at be because become becomes becoming been between " +
    "both but by can cannot cant cause caused causes code could did do does doesn doesnt don dont during each either " +
    "else error even ever every everything exactly experience experiencing find fine for found from get gets getting " +
    "give gives go goes good had happen happened happening happens has have hello help hi how i if in instead into is " +
    "isnt issue it its just keep keeps kind know large later like lot made make makes many may maybe me might model " +
    "more most much my need needs not now o of often old on one ones only or other otherwise please possible problem " +
    "pytorch question really reason right run running runtimeerror s said same say see seems seen set several shall " +
    "should show shown shows since so solve solved some somehow something sometimes still such sure t than thank " +
    "thanks that the their then there these they this those though through to too torch train training trainings try " +
    "trying under understand until up us use used userwarning using valueerror very want was way ways we well were what " +
    "when where whether which while who why will with within without work works would yes yet you your").split(" "),
);
// Nearly every question here has one of these: they say less than its other words.
const common = new Set(
  "amp autocast bf16 bfloat16 cuda float16 float32 fp16 fp32 gradient gradscaler grad half loss lossscaling mixed precision scale scaler step".split(" ").map(stem),
);
const otherNames = [
  "amp mixed", "batchnorm bn", "better difference versus vs", "bf16 bfloat16", "clip clipping", "compile compiled compiling",
  "ddp distributed ranks gpus", "diverge explode blow explosion", "fp16 float16 half", "fp32 float32 float single", "fp8 float8",
  "grad gradient", "gradscaler lossscaling", "jump spike", "load resume", "lr rate", "minimum min", "nan nonfinite", "norm gnorm", "notification slack email",
  "oom memory", "operations ops", "optimizer optimizers optim", "overflow inf infinity infinite", "reproducible reproducibility deterministic", "resume restart reload", "save checkpoint",
  "slower slow speed faster speedup", "step iteration", "upload send privacy", "wandb weights", "zero 0",
].map((names) => names.split(" "));

// Converge, converges, convergence: one word.
function stem(word) {
  const bare = word.replace(/(?<=\w{3})(?:(?:at)?(?:ion|ing|ed|e)|ence|(?=s$))(?:s?$)|(?<=\w\w[^s])s$/, "");
  return bare === word ? word : bare.replace(/([bdgmnprt])\1$/, "$1");
}

function wordsOf(text) {
  const apart = text
    .toLowerCase()
    .replace(/<[^>]*>|&[a-z]+;/g, " ")
    .replace(/\p{Script=Han}/gu, " $& ")
    .replace(/(\d),(?=\d{3})/g, "$1")
    .replace(/\bloss[ -]scaling\b/g, "lossscaling") // what a GradScaler does, not the number
    .replace(/\b(grad|fp|bf|float|bfloat|batch|layer|non)[ _-](?=(scaler|8|16|32|norm|finite)\b)/g, "$1");
  return apart.split(/[^\p{L}\p{N}.]+|\.(?!\d)/u).filter(Boolean).map((word) => word.replace(/^\.+|\.0+$/g, ""));
}

function meantOf(question) {
  const words = wordsOf(question);
  const meant = words.filter((word) => !fillers.has(word));
  return meant.length ? meant : words;
}

function namesOf(word) {
  return otherNames.filter((names) => names.includes(word)).flat().filter((name) => name !== word);
}

let sections = new Map(); // by location: what is counted of it
let holding = new Map(); // by stem: how many sections have it

function fieldOf(text) {
  const words = wordsOf(text);
  const counts = new Map();
  for (const word of words.map(stem)) counts.set(word, (counts.get(word) ?? 0) + 1);
  const meant = words.filter((word) => !fillers.has(word)).map(stem); // "the loss is NaN": loss NaN
  const pairs = new Set(meant.slice(1).map((word, at) => `${meant[at]} ${word}`));
  return { counts, pairs, length: meant.length };
}

function count(docs) {
  sections = new Map();
  holding = new Map();
  for (const doc of docs) {
    const messages = [...doc.text.matchAll(/(?<!<pre>)<code>((?:[^ <]+ ){4}[^<]*)/g)].map(([, message]) => fieldOf(message));
    const asked = fieldOf((doc.asked ?? []).join("\n"));
    const section = { title: fieldOf(doc.title), asked, messages, text: fieldOf(doc.text), boost: doc.boost ?? 1 };
    sections.set(doc.location, section);
    for (const word of new Set([...section.title.counts.keys(), ...section.text.counts.keys()]))
      holding.set(word, (holding.get(word) ?? 0) + 1);
  }
}

const rarity = (word) => (common.has(word) ? 0.4 : 1) * Math.log(1 + sections.size / (holding.get(word) ?? 1));

function inField(field, word, usual) {
  const times = field.counts.get(word) ?? 0;
  return times / (times + 0.8 + (0.3 * field.length) / usual);
}

function scoreOf(section, question) {
  const pairs = question.slice(1).map((word, at) => `${stem(question[at])} ${stem(word)}`);
  const pasted = ({ pairs: printed }) => 2 * pairs.filter((pair) => printed.has(pair)).length > pairs.length;
  const titles = [section.title, ...section.messages.filter(pasted)];
  return Math.max(...titles.map((title) => scoreUnder(title, section, question)));
}

function scoreUnder(title, section, question) {
  let score = 0;
  for (const word of new Set(question)) {
    const weightOf = (name) => Math.min(rarity(stem(word)), rarity(name)); // another name says no more than the word
    const each = (name) => weightOf(name) * (3 * inField(title, name, 7) + inField(section.asked, name, 60) + inField(section.text, name, 80));
    score += Math.max(each(stem(word)), ...namesOf(word).map((name) => 0.8 * each(stem(name))));
  }
  for (let at = 1; at < question.length; at += 1) {
    const [one, next] = [stem(question[at - 1]), stem(question[at])];
    const weight = (rarity(one) + rarity(next)) / 2;
    if (title.pairs.has(`${one} ${next}`)) score += 1.5 * weight;
    else if ([section.asked, section.text].some(({ pairs }) => pairs.has(`${one} ${next}`))) score += 0.5 * weight;
  }
  return score * section.boost;
}

function order(groups, question) {
  const words = meantOf(question);
  for (const items of groups) {
    for (const item of items) {
      const section = sections.get(item.location);
      const has = (name) => section.title.counts.has(stem(name)) || section.text.counts.has(stem(name));
      item.score = scoreOf(section, words);
      // What Material shows as missing: words of the question, and none that the query has besides.
      item.terms = Object.fromEntries(words.map((word) => [word, [word, ...namesOf(word)].some(has)]));
    }
    items.sort((one, next) => next.score - one.score);
  }
  groups.sort(([one], [next]) => next.score - one.score);
}

const questions = [];
const post = Worker.prototype.postMessage;
Worker.prototype.postMessage = function (message, ...rest) {
  if (message?.type === 0) {
    count(message.data.docs);
    // Material has drawn lunr's order by then: it draws again, before the browser shows anything.
    this.addEventListener("message", ({ data, isTrusted }) => {
      if (!isTrusted || data?.type !== 3) return;
      order(data.data.items, questions.shift() ?? "");
      this.dispatchEvent(new MessageEvent("message", { data }));
    });
  } else if (message?.type === 2) {
    questions.push(message.data);
    const words = meantOf(message.data).flatMap((word) => [word, stem(word).length > 4 ? `${stem(word)}*` : word, ...namesOf(word)]);
    message = { ...message, data: [...new Set(words)].join(" ") };
  }
  return post.call(this, message, ...rest);
};

// Material draws a page above its sections, and without their text: the section that answers comes first.
new MutationObserver((changes) => {
  for (const item of changes.flatMap(({ addedNodes }) => [...addedNodes])) {
    const [page, best] = item.children;
    if (best?.matches("a")) best.after(page);
  }
}).observe(document.querySelector(".md-search-result__list"), { childList: true });
