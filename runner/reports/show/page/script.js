"use strict";
(() => {
  const all = (selector, from = document) => [...from.querySelectorAll(selector)];

  // Devices: what one of them holds, in every picture.
  const panel = document.querySelector(".devices");
  if (panel) {
    const cells = all("[data-d]").map((cell) => [cell, new Set(cell.dataset.d.split(" "))]);
    const held = document.getElementById("held");
    const show = (device) => {
      document.body.classList.toggle("chosen", device !== "");
      const found = [];
      for (const [cell, devices] of cells) {
        const on = devices.has(device);
        cell.classList.toggle("on", on);
        if (!on || !cell.dataset.i) continue;
        const name = cell.closest("[data-name]").dataset.name;
        const near = cell.dataset.i.startsWith("[") && !name.includes(",");
        found.push(`${name}${near ? "" : " "}${cell.dataset.i}`);
      }
      held.textContent = device === "" ? "" : `Device ${device}: ${found.join("  ") || "there is none of this number"}`;
    };
    const chosen = () => (panel.querySelector("input:checked") || panel.querySelector("input[type=number]") || { value: "" }).value;
    panel.addEventListener("input", () => show(chosen()));
    for (const [cell, devices] of cells) {
      if (devices.size !== 1) continue;
      cell.addEventListener("pointerenter", () => show([...devices][0]));
      cell.addEventListener("pointerleave", () => show(chosen()));
    }
    panel.hidden = false;
  }

  // Tables that can be sorted: by a button in each heading.
  for (const table of all("table.sortable")) {
    const body = table.tBodies[0];
    const key = (row, at) => {
      const cell = row.cells[at];
      return "v" in cell.dataset ? (cell.dataset.v === "" ? null : Number(cell.dataset.v)) : cell.textContent.trim();
    };
    for (const head of all("thead th", table)) {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") === "ascending";
        for (const other of all("th[aria-sort]", table)) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const at = head.cellIndex;
        const rows = [...body.rows].map((row) => [key(row, at), row]);
        rows.sort(([a], [b]) => {
          if (a === null || b === null) return (a === null) - (b === null);
          const order = typeof a === "number" ? a - b : a.localeCompare(b, "en", { numeric: true });
          return down ? -order : order;
        });
        body.append(...rows.map(([, row]) => row));
      });
    }
    const filter = document.getElementById(`${table.id}-filter`);
    if (filter) {
      const count = document.getElementById(`${table.id}-count`);
      const texts = new Map([...body.rows].map((row) => [row, row.textContent.toLowerCase()]));
      filter.addEventListener("input", () => {
        const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
        let left = 0;
        for (const [row, text] of texts) {
          row.hidden = !words.every((word) => text.includes(word));
          left += !row.hidden;
        }
        count.textContent = `${left} of ${texts.size} rows`;
      });
      filter.closest("[hidden]").hidden = false;
    }
  }

  // A row and its marks in the charts.
  const marks = new Map();
  for (const mark of all("[data-p]")) marks.set(mark.dataset.p, [...(marks.get(mark.dataset.p) || []), mark]);
  const light = (event, on) => {
    const mark = event.target.closest && event.target.closest("[data-p]");
    if (mark) for (const other of marks.get(mark.dataset.p)) other.classList.toggle("lit", on);
  };
  document.addEventListener("pointerover", (event) => light(event, true));
  document.addEventListener("pointerout", (event) => light(event, false));
  document.addEventListener("focusin", (event) => light(event, true));
  document.addEventListener("focusout", (event) => light(event, false));

  // Where in the page the reader is.
  const links = new Map(all("nav a").map((link) => [link.hash.slice(1), link]));
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      for (const link of links.values()) link.removeAttribute("aria-current");
      links.get(entry.target.id)?.setAttribute("aria-current", "true");
    }
  }, { rootMargin: "0px 0px -70% 0px" });
  for (const section of all("main>section")) seen.observe(section);
})();
