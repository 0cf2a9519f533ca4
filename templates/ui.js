"use strict";

// The page is kept fresh by what the server renders: an update replaces the content, as long as it is in use.
const content = document.getElementById("content");
const link = document.getElementById("link");
const live = document.body.dataset.live;

function place(element) {
  return element && (element.id || element.getAttribute("href") || element.dataset.copy || element.ariaLabel || element.name);
}

let waiting = null;

function update(html) {
  waiting = html;
  const editing = content.contains(document.activeElement) && /^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement.tagName);
  if (editing || content.querySelector("input[type=checkbox]:checked")) return; // until that is over
  waiting = null;
  const focused = content.contains(document.activeElement) && place(document.activeElement);
  const open = new Set([...content.querySelectorAll("details[open] > summary")].map((each) => each.textContent));
  content.innerHTML = html;
  for (const summary of content.querySelectorAll("details > summary")) {
    if (open.has(summary.textContent)) summary.parentElement.open = true;
  }
  const again = focused && [...content.querySelectorAll("a, button, input, [id], [aria-label]")].find((each) => place(each) === focused);
  if (again) again.focus({ preventScroll: true });
}

// Browsers hold six connections to a server: only pages that somebody sees have one.
if (live) {
  const project = link.textContent;
  let source = null;
  const connect = () => {
    if (source) source.close();
    source = null;
    if (document.hidden) return;
    source = new EventSource(live);
    source.addEventListener("update", (event) => update(event.data));
    source.addEventListener("open", () => { link.textContent = project; });
    source.addEventListener("error", () => { link.textContent = "not connected: is tpuctl ui still running?"; });
  };
  document.addEventListener("visibilitychange", connect);
  connect();
}

for (const over of ["focusout", "change"]) {
  document.addEventListener(over, () => setTimeout(() => { if (waiting !== null) update(waiting); }));
}

document.addEventListener("click", async (event) => {
  const button = event.target.closest("button[data-copy]");
  if (!button) return;
  await navigator.clipboard.writeText(button.dataset.copy);
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = "Copy"; }, 1500);
});

document.addEventListener("change", (event) => {
  if (event.target.tagName === "SELECT" && event.target.form && event.target.form.method === "get" && event.target.name) {
    event.target.form.requestSubmit();
  }
});

// A log of any size: the box scrolls over the height of all of it, and holds the lines around one place of the file.
const box = document.getElementById("log");
if (box) {
  const lines = document.getElementById("log-lines");
  const height = document.getElementById("log-height");
  const of = document.getElementById("log-of");
  const said = document.getElementById("log-said");
  const follow = document.getElementById("log-follow");
  const text = document.getElementById("log-text");
  const BYTES = 131072, LINE = 18, HEIGHT_MAX = 8000000; // browsers draw no box that is higher than 16 million
  let size = 0, begin = 0, end = 0, perLine = 80, found = 0, busy = false, again = false;

  const total = () => Math.min(HEIGHT_MAX, Math.max(box.clientHeight, Math.ceil(size / perLine) * LINE));
  const address = (what, values) => {
    const query = new URLSearchParams({ log: of.value, ...values });
    return `/runs/${encodeURIComponent(box.dataset.run)}/log/${what}?${query}`;
  };

  async function ask(what, values) {
    const answer = await fetch(address(what, values));
    if (!answer.ok) throw new Error(await answer.text());
    return answer.json();
  }

  async function load(offset) {
    if (busy) { again = true; return; }
    busy = true;
    try {
      show(await ask("part", { offset: Math.max(0, Math.floor(offset)), limit: BYTES }));
    } catch (error) {
      said.textContent = `not read: ${error.message}`; // the next scroll or second tries again
    } finally {
      busy = false;
    }
    if (again) { again = false; scrolled(); }
  }

  function show(part) {
    ({ size, begin, end } = part);
    lines.textContent = part.text;
    perLine = (end - begin) / Math.max(1, part.text.split("\n").length - 1) || 80;
    height.style.height = `${total()}px`;
    const top = size ? (begin / size) * total() : 0;
    lines.style.top = `${Math.max(0, Math.min(top, total() - lines.offsetHeight))}px`;
    said.textContent = `${begin.toLocaleString()} to ${end.toLocaleString()} of ${size.toLocaleString()} bytes`;
  }

  function scrolled() {
    const span = total() - box.clientHeight;
    const at = span > 0 ? (box.scrollTop / span) * size : 0;
    const top = lines.offsetTop, bottom = top + lines.offsetHeight;
    if (box.scrollTop >= top && box.scrollTop + box.clientHeight <= bottom) return;
    if (at >= size && end === size && bottom >= total()) return;
    load(at - BYTES / 2);
  }

  async function findNext() {
    if (!text.value) return;
    let from = found;
    try {
      for (;;) {
        const hit = await ask("find", { text: text.value, offset: from });
        if (hit.at !== null) {
          found = hit.next;
          await load(hit.at);
          box.scrollTop = lines.offsetTop;
          said.textContent = `found at byte ${hit.at.toLocaleString()}`;
          return;
        }
        if (hit.next === null) { found = 0; said.textContent = "not found from here on; again begins at the top"; return; }
        from = hit.next;
        said.textContent = `looked through ${from.toLocaleString()} bytes`;
      }
    } catch (error) {
      said.textContent = `not read: ${error.message}`;
    }
  }

  async function toEnd() { await load(Number.MAX_SAFE_INTEGER); box.scrollTop = box.scrollHeight; }

  box.addEventListener("scroll", () => requestAnimationFrame(scrolled));
  const logs = [...of.options];
  const filters = [...document.querySelectorAll(".log-filter")];
  for (const filter of filters) {
    filter.addEventListener("change", () => {
      const fits = (log, each) => !each.value || log.dataset[each.dataset.field] === each.value;
      of.replaceChildren(...logs.filter((log) => filters.every((each) => fits(log, each))));
      if (!of.options.length) { said.textContent = "no log is like that"; return; }
      of.selectedIndex = of.options.length - 1;
      found = 0;
      toEnd();
    });
  }
  of.addEventListener("change", () => { found = 0; toEnd(); });
  document.getElementById("log-form").addEventListener("submit", (event) => { event.preventDefault(); findNext(); });
  setInterval(() => { if (follow.checked && of.value && !busy) toEnd(); }, 1000);
  toEnd();
}
