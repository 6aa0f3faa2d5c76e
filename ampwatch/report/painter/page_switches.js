// One press of Back for one switch of pages. Streamlit writes two entries when the server switches:
// the new query on the old page, then the new page. The second takes the place of the first.

const INPUTS = ["pointerdown", "keydown", "popstate"]; // who presses or goes back begins anew

let isHalfway = false; // whether the last entry changed the query alone, and its reader did nothing since

export function oneEntryForASwitch() {
  const push = history.pushState.bind(history);
  history.pushState = (state, title, url) => {
    const to = new URL(url ?? location.href, location.href);
    const isSamePage = to.pathname === location.pathname;
    if (isHalfway && !isSamePage && to.search === location.search) history.replaceState(state, title, url);
    else push(state, title, url);
    isHalfway = isSamePage;
  };
  for (const input of INPUTS) window.addEventListener(input, () => (isHalfway = false), { capture: true });
}
