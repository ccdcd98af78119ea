// The stored theme, set before the first paint: modules run later, and the page would flash.
// A classic script, because a module waits until the document is parsed.
try {
  document.documentElement.dataset.theme = localStorage.getItem("theme") || "auto";
} catch {
  document.documentElement.dataset.theme = "auto";
}
