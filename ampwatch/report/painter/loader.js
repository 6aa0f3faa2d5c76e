// All that Streamlit itself is given: it carries a component's script inside every message, so the
// script is this small, and the rest is loaded once, by address.
export default async function (component) {
  const page = document.querySelector('script[src*="static/js/"]').src;
  const root = new URL(`../../component/@FOLDER@/`, page); // right behind any proxy's prefix too
  const { mount } = await import(new URL("dashboard.js", root));
  return mount(component);
}
