// Copying a text, and saying whether it worked.

import { make } from "./elements.js";

const SAID_MS = 2500;

// Copies, and says on the button what came of it.
export function copied(button, text) {
  byClipboard(text).then((worked) => say(button, worked || bySelection(text)));
}

function say(button, worked) {
  const usual = (button.dataset.words ??= button.textContent);
  button.textContent = worked ? "copied" : "not copied: select the text and copy it";
  aloud().textContent = button.textContent;
  clearTimeout(Number(button.dataset.timer));
  button.dataset.timer = setTimeout(() => (button.textContent = usual), SAID_MS);
  button.focus();
}

// Where screen readers hear it: the button keeps its name.
function aloud() {
  let place = document.querySelector(".aw-aloud");
  if (!place) {
    place = make("div", "aw-aloud");
    place.setAttribute("role", "status");
    document.body.append(place);
  }
  return place;
}

async function byClipboard(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false; // over plain HTTP there is no clipboard, and it can be forbidden
  }
}

function bySelection(text) {
  const field = make("textarea");
  field.value = text;
  field.style.cssText = "position:fixed;top:0;opacity:0";
  field.setAttribute("aria-hidden", "true");
  document.body.append(field);
  field.select();
  try {
    return document.execCommand("copy");
  } catch {
    return false;
  } finally {
    field.remove();
  }
}
