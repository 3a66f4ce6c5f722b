// JupyterLab's renderer of labkit's flame graphs: their data are in a notebook's outputs, and flame.js draws them. It is
// safe, so JupyterLab draws them in notebooks that are not trusted, too. Written by hand as JupyterLab loads an extension
// that was built (a container of module federation: `init` gets the shared packages, `get` returns a module).
(() => {
const HERE = document.currentScript.src.replace(/[^/]*$/, "");
const MIME = "application/vnd.labkit.flame.v1+json";
let shared;

async function package_(name) {
  const [version] = Object.values(shared[name]);
  return (await version.get())();
}

// flame.js is a script of pages as well, so it exports nothing.
async function drawing() {
  const answer = await fetch(`${HERE}flame.js`);
  if (!answer.ok) throw new Error(`${answer.url}: ${answer.status}`);
  const address = URL.createObjectURL(new Blob([await answer.text(), "\nexport {Flame, made};"], {type: "text/javascript"}));
  const module = await import(/* webpackIgnore: true */ address);
  URL.revokeObjectURL(address);
  document.head.append(module.made("link", {rel: "stylesheet", href: `${HERE}flame.css`}));
  return module;
}

async function extension() {
  const [{Widget}, {Flame, made}] = await Promise.all([package_("@lumino/widgets"), drawing()]);
  class Output extends Widget {
    async renderModel(model) {
      const place = made("div", {className: "labkit-flame"});
      this.node.replaceChildren(place);
      new Flame(place, model.data[MIME]);
    }
  }
  return {
    id: "labkit:flame",
    rank: 0,  // before HTML
    rendererFactory: {safe: true, mimeTypes: [MIME], createRenderer: () => new Output()},
  };
}

(window._JUPYTERLAB ??= {}).labkit = {
  init(scope) { shared = scope; },
  async get(_name) {
    const made = await extension();
    return () => ({__esModule: true, default: made});
  },
};
})();
