// Shows the page again whenever the server sends it.
const changes = new EventSource("changes");
changes.onmessage = (event) => {
  document.body.classList.remove("lost");
  document.querySelector("main").innerHTML = event.data;
};
changes.onerror = () => document.body.classList.add("lost");
