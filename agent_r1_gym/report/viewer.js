// The viewer of traces, packed by `viewer.py`. Foreign text enters the page by textContent only.
"use strict";
(() => {
  const byId = (id) => document.getElementById(id);
  const unfold = () => {
    const fold = location.hash.length > 1 && byId(location.hash.slice(1))?.querySelector("details");
    if (fold) fold.open = true;
  };
  window.addEventListener("hashchange", unfold);
  unfold();
  if (!byId("index")) return;
  const list = byId("list"), spacer = byId("spacer"), trace = byId("trace"), search = byId("search");
  const count = byId("count"), status = byId("token"), ROW = 56, LONG = 700;
  const inflated = new Map();
  let index, visible = [], selectedItem = -1, run = 0, drawn = 0, remembers = false;
  let sorted = "", together = false, raw = false;

  function make(tag, className, ...children) {
    const node = document.createElement(tag);
    if (className) node.className = className;
    node.append(...children);
    return node;
  }

  // --- packed data: each chunk is inflated once, when it is first needed

  async function inflate(id) {
    const text = atob(byId(id).textContent), bytes = new Uint8Array(text.length);
    for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return JSON.parse(await new Response(stream).text());
  }

  function chunk(id) {
    if (!inflated.has(id)) inflated.set(id, inflate(id));
    return inflated.get(id);
  }

  const sidesOf = async (item) => (await chunk(`items-${Math.floor(item / index.perChunk)}`))[item % index.perChunk];

  function chunkOfLine(line) {
    let low = 0, high = index.textStarts.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (index.textStarts[middle] <= line) low = middle; else high = middle - 1;
    }
    return low;
  }

  async function textOf(lines) {
    const texts = [];
    for (const line of lines) {
      const at = chunkOfLine(line);
      texts.push((await chunk(`texts-${at}`))[line - index.textStarts[at]]);
    }
    return texts.join("\n");
  }

  function addFacets() {
    for (const facet of index.facets) {
      if (facet.options.length < 2) continue;
      const select = make("select");
      select.add(new Option(`all (${index.titles.length})`, -1));
      facet.options.forEach((option, at) => select.add(new Option(`${option} (${facet.counts[at]})`, at)));
      select.value = facet.selected;
      select.addEventListener("change", () => { facet.selected = Number(select.value); refresh(); });
      facet.select = select;
      byId("facets").append(make("label", "", facet.name, select));
    }
  }

  // --- order and switches

  function addTools() {
    const labelled = (name, node) => byId("tools").append(make("label", "", name, node));
    const named = (text, act) => {
      const button = make("button", "", text);
      button.type = "button";
      button.addEventListener("click", () => act(button));
      byId("tools").append(button);
    };
    const select = make("select");
    select.id = "order";
    select.add(new Option("as played", ""));
    for (const name of Object.keys(index.orders))
      for (const [way, sign] of [["lowest", 1], ["highest", -1]])
        select.add(new Option(`${name}, ${way} first`, `${name} ${sign}`));
    select.addEventListener("change", () => { sorted = select.value; refresh(); });
    labelled("sort", select);
    if (index.tasks.length) labelled("all runs of a task", switchOf("together", (on) => { together = on; }));
    labelled("raw text", switchOf("raw", (on) => { raw = on; }));
    if (index.wrong.includes("1")) named("next wrong", nextWrong);
    named("copy link", copyLink);
  }

  function switchOf(id, set) {
    const box = make("input");
    box.type = "checkbox";
    box.id = id;
    box.addEventListener("change", () => { set(box.checked); remember(); drawTrace(); });
    return box;
  }

  function inOrder(items) {
    const end = sorted.lastIndexOf(" "), values = index.orders[sorted.slice(0, end)];  // names may have spaces
    if (!values) return items;
    const sign = Number(sorted.slice(end)), value = (item) => values[item] ?? -Infinity;
    return items.sort((a, b) => sign * (value(a) - value(b)) || a - b);
  }

  function nextWrong() {
    const from = visible.indexOf(selectedItem) + 1, around = [...visible.slice(from), ...visible.slice(0, from)];
    const next = around.find((item) => index.wrong[item] === "1");
    if (next !== undefined) choose(visible.indexOf(next));
  }

  async function copyLink(button) {
    remember();
    const done = await navigator.clipboard?.writeText(location.href).then(() => true, () => false);
    button.textContent = done ? "copied" : "copy it from the address bar";
    setTimeout(() => { button.textContent = "copy link"; }, 1500);
  }

  // --- filters and search

  const passes = (item) =>
    index.facets.every((facet) => facet.selected < 0 || (facet.bits[item] >> facet.selected) & 1);
  const query = () => search.value.trim().toLowerCase();
  const matches = (text, words) => text.toLowerCase().includes(words);

  async function refresh() {
    const mine = ++run, words = query();
    const filtered = [...index.titles.keys()].filter(passes);
    if (!words) return show(filtered, "");
    const quick = (item) => matches(index.titles[item], words) || matches(index.details[item], words);
    show(filtered.filter(quick), ", searching the traces …");
    const hits = new Set();
    for (let at = 0; at < index.textStarts.length; at++) {
      const lines = await chunk(`texts-${at}`);
      if (mine !== run) return;
      lines.forEach((line, number) => { if (matches(line, words)) hits.add(index.textStarts[at] + number); });
    }
    const hasHit = (block) =>
      block[2].some((line) => hits.has(line)) || (block[5] && matches(block[5][0].join(""), words));
    const matching = [];
    for (const item of filtered) {
      if (quick(item) || (await sidesOf(item)).some((side) => side[2].some(hasHit))) matching.push(item);
      if (mine !== run) return;
    }
    show(matching, "");
  }

  function show(items, note) {
    visible = inOrder(items);
    spacer.style.height = `${items.length * ROW}px`;
    count.textContent = `${items.length} of ${index.titles.length}${note}`;
    if (!visible.includes(selectedItem)) {
      list.scrollTop = 0;
      choose(visible.length ? 0 : -1);
    } else choose(visible.indexOf(selectedItem));
  }

  // --- the list draws only the rows in sight

  function draw() {
    const first = Math.max(0, Math.floor(list.scrollTop / ROW) - 4);
    const last = Math.min(visible.length, Math.ceil((list.scrollTop + list.clientHeight) / ROW) + 4);
    const rows = [];
    for (let at = first; at < last; at++) {
      const item = visible[at];
      const row = make("div", "row", make("b", "", index.marks[item]), make("div", "", index.titles[item]),
        make("div", "detail", index.details[item]));
      row.id = `row-${item}`;
      row.style.top = `${at * ROW}px`;
      row.setAttribute("role", "option");
      row.setAttribute("aria-selected", item === selectedItem);
      row.setAttribute("aria-setsize", visible.length);
      row.setAttribute("aria-posinset", at + 1);
      row.addEventListener("click", () => choose(at));
      rows.push(row);
    }
    spacer.replaceChildren(...rows);
  }

  function choose(at) {
    selectedItem = at < 0 ? -1 : visible[at];
    if (at >= 0) {
      const top = at * ROW, bottom = top + ROW - list.clientHeight;
      if (list.scrollTop > top) list.scrollTop = top;
      if (list.scrollTop < bottom) list.scrollTop = bottom;
      list.setAttribute("aria-activedescendant", `row-${selectedItem}`);
    } else list.removeAttribute("aria-activedescendant");
    draw();
    remember();
    drawTrace();
  }

  // --- one trace

  async function drawTrace() {
    const item = selectedItem, mine = ++drawn;
    status.hidden = true;
    if (item < 0) return trace.replaceChildren("No episode is selected.");
    const columns = [], task = index.tasks[item];
    const peers = together && index.tasks.length ? [...index.tasks.keys()].filter((at) => index.tasks[at] === task) : [item];
    const sides = (await Promise.all(peers.map(sidesOf))).flat();
    for (const [title, facts, blocks] of sides) {
      const column = make("section", "");
      if (title && sides.length > 1) column.append(make("h3", "", title));
      column.append(make("p", "facts", facts));
      for (const block of blocks) column.append(await drawBlock(block));
      columns.push(column);
    }
    if (mine !== drawn) return;
    const head = make("h3", "", `${index.marks[item]} ${index.titles[item]}`);
    trace.replaceChildren(head, make("p", "facts", index.details[item]), make("div", "sides", ...columns));
    document.body.dataset.ready = Math.round(performance.now());
  }

  async function drawBlock([role, label, lines, notes, faults, tokens]) {
    const folds = role === "system";
    const head = make(folds ? "summary" : "header", "", make("b", "", label));
    for (const note of notes) head.append(make("span", "", note));
    for (const fault of faults) head.append(make("span", "fault", fault));
    const text = make("div", "text");
    if (tokens) text.append(...drawTokens(tokens));
    else text.append(...highlight(await textOf(lines)));
    const block = make(folds ? "details" : "section", `block ${role}`, head, text);
    if (role === "tool" && !tokens && !query() && text.textContent.length > LONG) foldText(block, text);
    return block;
  }

  function foldText(block, text) {
    const more = make("button", "more", `all ${text.textContent.length.toLocaleString("en")} characters`);
    text.classList.add("clipped");
    more.addEventListener("click", () => { text.classList.remove("clipped"); more.remove(); });
    block.append(more);
  }

  // One pass: a regular expression for "opened ... closed" would scan to the end again behind every unclosed tag.
  function actionsIn(text) {
    const opening = /<(tool_call|search|answer|think)>/g, absent = new Set(), spans = [];
    for (let match = opening.exec(text); match; match = opening.exec(text)) {
      const closing = `</${match[1]}>`;
      const at = absent.has(closing) ? -1 : text.indexOf(closing, opening.lastIndex);
      if (at < 0) absent.add(closing);
      else spans.push([match.index, (opening.lastIndex = at + closing.length)]);
    }
    return spans;
  }

  function highlight(text) {
    const parts = [];
    let end = 0;
    for (const [from, to] of actionsIn(text)) {
      parts.push(...hits(text.slice(end, from)), drawAction(text.slice(from, to)));
      end = to;
    }
    return [...parts, ...hits(text.slice(end))];
  }

  // An action without its markup: thoughts set apart, calls with named arguments. Invalid JSON stays as written, and so
  // do numbers with more digits than JavaScript keeps.
  function drawAction(written) {
    const [, tag, inner] = written.match(/^<(\w+)>([^]*)<\/\w+>$/);
    if (raw) return make("mark", "", ...hits(written));
    if (tag === "think") return make("span", "think", ...hits(inner.trim()));
    if (tag !== "tool_call") return make("mark", "call", make("b", "", tag), " ", ...hits(inner.trim()));
    let call;
    try { call = /\d{16}/.test(inner) ? null : JSON.parse(inner); } catch { call = null; }
    if (typeof call?.name !== "string") return make("mark", "", ...hits(written));
    const node = make("mark", "call", make("b", "", ...hits(call.name)));
    for (const [name, value] of Object.entries(call.arguments ?? {})) {
      const text = typeof value === "string" ? value : JSON.stringify(value);
      node.append(" ", make("span", "argument", make("i", "", ...hits(name)), " ", ...hits(text)));
    }
    return node;
  }

  function hits(text) {
    const words = query(), parts = [], low = text.toLowerCase();
    if (!words || low.length !== text.length) return [text];
    let end = 0;
    for (let at = low.indexOf(words); at >= 0; at = low.indexOf(words, end)) {
      parts.push(text.slice(end, at), make("mark", "hit", text.slice(at, at + words.length)));
      end = at + words.length;
    }
    return [...parts, text.slice(end)];
  }

  // --- tokens: shaded if they are in the loss, green for positive advantages and red for negative ones

  function drawTokens([pieces, mask, logprobs, advantages]) {
    return pieces.map((piece, at) => {
      const node = make("span", "t", piece), advantage = advantages[at];
      if (mask[at] === "1") {
        node.classList.add("on");
        if (advantage) {
          node.classList.add(advantage > 0 ? "up" : "down");
          node.style.setProperty("--weight", Math.min(0.15 + 0.2 * Math.abs(advantage), 0.6));
        }
      }
      const number = (name, value) => (value === null ? "" : ` · ${name} ${value.toFixed(3)}`);
      node.summary = `${JSON.stringify(piece)} · ${mask[at] === "1" ? "trained on" : "not trained on"}` +
        number("log-prob", logprobs[at]) + number("advantage", advantage);
      return node;
    });
  }

  function describe(node) {
    trace.querySelector(".now")?.classList.remove("now");
    status.hidden = !node;
    if (!node) return;
    node.classList.add("now");
    status.textContent = node.summary;
  }

  function nextToken(step) {
    const tokens = [...trace.querySelectorAll(".t")];
    if (!tokens.length) return;
    const now = tokens.findIndex((node) => node.classList.contains("now"));
    const next = tokens[Math.min(Math.max(now + step, 0), tokens.length - 1)];
    describe(next);
    next.scrollIntoView({ block: "nearest" });
  }

  // --- keys, and the address, which stores the state of the viewer

  function move(step) {
    if (visible.length) choose(Math.min(Math.max(visible.indexOf(selectedItem) + step, 0), visible.length - 1));
  }

  const page = () => Math.max(1, Math.floor(list.clientHeight / ROW) - 1);
  const GLOBAL = { j: () => move(1), k: () => move(-1), n: () => nextToken(1), p: () => nextToken(-1),
    w: nextWrong, "/": () => search.focus() };
  const LIST = { ArrowDown: () => move(1), ArrowUp: () => move(-1), PageDown: () => move(page()),
    PageUp: () => move(-page()), Home: () => move(-visible.length), End: () => move(visible.length),
    Enter: () => trace.focus() };

  function onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target === search && (event.key === "Enter" || event.key === "Escape")) {
      event.preventDefault();
      return list.focus();
    }
    if (/^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
    const act = GLOBAL[event.key] || (event.target === list && LIST[event.key]);
    if (!act) return;
    event.preventDefault();
    act();
  }

  function remember() {
    if (!remembers) return;
    const words = new URLSearchParams();
    for (const facet of index.facets) if (facet.select && facet.selected >= 0) words.set(facet.name, facet.options[facet.selected]);
    if (search.value) words.set("q", search.value);
    if (sorted) words.set("sort", sorted);
    if (together) words.set("together", 1);
    if (selectedItem >= 0) words.set("item", selectedItem);
    history.replaceState(null, "", `#${words}`);
  }

  function recall() {
    const words = new URLSearchParams(location.hash.slice(1));
    if (![...words].length || byId(location.hash.slice(1))) return;
    for (const facet of index.facets) {
      facet.selected = facet.options.indexOf(words.get(facet.name));
      if (facet.select) facet.select.value = facet.selected;
    }
    search.value = words.get("q") || "";
    byId("order").value = sorted = words.get("sort") || "";
    if (byId("together")) byId("together").checked = together = words.has("together");
    selectedItem = Number(words.get("item") ?? -1);
    byId("filters").scrollIntoView();
  }

  async function start() {
    index = await chunk("index");
    addFacets();
    addTools();
    recall();
    let timer;
    search.addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(refresh, 150); });
    byId("filters").addEventListener("submit", (event) => event.preventDefault());
    list.addEventListener("scroll", draw, { passive: true });
    window.addEventListener("resize", draw);
    document.addEventListener("keydown", onKey);
    trace.addEventListener("mouseover", (event) => { if (event.target.summary) describe(event.target); });
    trace.addEventListener("mouseleave", () => describe(null));
    await refresh();
    remembers = true;
  }

  start().catch((error) => { count.textContent = `The traces could not be read: ${error}`; });
})();
