/* Search without a server: browsers refuse to start a worker from a file:// page, so its script
   runs in a hidden frame instead. The name is what the offline plug-in of the theme looks for. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      this.waiting = []; // messages for a script that has not loaded yet
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inner = this.frame.contentWindow;
      inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const load = (source) =>
        new Promise((loaded, failed) => {
          const script = inner.document.createElement("script");
          script.src = new URL(source, address);
          script.onload = loaded;
          script.onerror = failed;
          inner.document.body.append(script);
        });
      inner.importScripts = (...sources) => sources.reduce((last, one) => last.then(() => load(one)), Promise.resolve());
      load(address).then(() => {
        const messages = this.waiting;
        this.waiting = null;
        messages.forEach((data) => this.postMessage(data));
      });
    }

    postMessage(data) {
      if (this.waiting) this.waiting.push(data);
      else {
        const inner = this.frame.contentWindow;
        inner.dispatchEvent(new inner.MessageEvent("message", { data }));
      }
    }

    terminate() {
      this.frame.remove();
    }
  };
}
