"use strict";
// Lights up every place of the name under the pointer.
const places = new Map();
for (const a of document.querySelectorAll("main a")) {
  const name = a.id || a.getAttribute("href").slice(1);
  if (!places.has(name)) places.set(name, []);
  places.get(name).push(a);
}
const light = (event, on) => {
  if (event.target.tagName !== "A") return;
  for (const a of places.get(event.target.id || event.target.getAttribute("href").slice(1)) ?? []) a.classList.toggle("lit", on);
};
document.querySelector("main").addEventListener("mouseover", (event) => light(event, true));
document.querySelector("main").addEventListener("mouseout", (event) => light(event, false));
// Hides the lines that do not have what is looked for.
document.getElementById("find").addEventListener("input", (event) => {
  const wanted = event.target.value;
  for (const line of document.querySelectorAll("main div")) line.hidden = !line.textContent.includes(wanted);
});
