// Runs before the page is drawn, so that a dark page never flashes white.
(() => {
  const key = "edgeloop-theme";
  const system = matchMedia("(prefers-color-scheme: dark)");
  const kept = () => {
    try { return localStorage.getItem(key); } catch { return null; }
  };
  const show = () => {
    document.documentElement.dataset.theme = kept() ?? (system.matches ? "dark" : "light");
  };
  show();
  system.addEventListener("change", show);
  addEventListener("storage", show); // another tab chose
  document.addEventListener("click", (event) => {
    if (!event.target.closest("[data-toggle-theme]")) return;
    const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    try { localStorage.setItem(key, next); } catch { /* then for this page only */ }
    document.documentElement.dataset.theme = next;
  });
})();
