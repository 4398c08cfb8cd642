// Theme, menu and search. INDEX, written before this by tools/build_docs.py, has one entry per heading.
"use strict";
const at = (id) => document.getElementById(id);

at("theme").addEventListener("click", () => {
  const root = document.documentElement;
  root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark";
  localStorage.setItem("theme", root.dataset.theme);
});

at("menu").addEventListener("click", () => {
  const open = at("side").classList.toggle("open");
  at("menu").setAttribute("aria-expanded", String(open));
});

function score(entry, words) {
  const heading = entry.heading.toLowerCase();
  const page = entry.page.toLowerCase();
  const text = entry.text.toLowerCase();
  let total = 0;
  for (const word of words) {
    const one = (page.includes(word) ? 6 : 0) + (heading.includes(word) ? 8 : 0) + (text.includes(word) ? 1 : 0);
    if (one === 0) return 0;
    total += one;
  }
  return total;
}

function search(query) {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  if (words.length === 0) return [];
  return INDEX.map((entry) => [score(entry, words), entry]).filter(([n]) => n > 0)
    .sort((a, b) => b[0] - a[0]).slice(0, 12).map(([, entry]) => entry);
}

function show(query) {
  const list = at("found");
  list.replaceChildren();
  list.hidden = query.trim() === "";
  const found = search(query);
  if (found.length === 0) {
    const none = document.createElement("p");
    none.textContent = "Nothing found.";
    list.append(none);
  }
  for (const entry of found) {
    const link = document.createElement("a");
    const place = document.createElement("small");
    link.href = entry.url;
    link.textContent = entry.heading || entry.page;
    place.textContent = entry.page;
    link.append(place);
    const item = document.createElement("li");
    item.append(link);
    list.append(item);
  }
}

const input = at("search");
input.addEventListener("input", () => show(input.value));
input.addEventListener("keydown", (event) => {
  const links = [...at("found").querySelectorAll("a")];
  const chosen = links.findIndex((link) => link.classList.contains("chosen"));
  if (event.key === "Escape") { input.value = ""; show(""); }
  if (event.key === "Enter" && links.length) links[Math.max(0, chosen)].click();
  if (event.key === "ArrowDown" || event.key === "ArrowUp") {
    event.preventDefault();
    const next = (chosen + (event.key === "ArrowDown" ? 1 : links.length)) % Math.max(1, links.length);
    links.forEach((link, n) => link.classList.toggle("chosen", n === next));
  }
});
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && document.activeElement !== input) { event.preventDefault(); input.focus(); }
});
document.addEventListener("click", (event) => {
  if (!event.target.closest(".search")) at("found").hidden = true;
});
