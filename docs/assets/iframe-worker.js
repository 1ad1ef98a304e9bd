/* Search without a server: browsers refuse to start a worker from a file:// page, so this runs its
   script in a hidden frame. The theme looks for the names of this file and of the class. */
if (location.protocol === "file:") {
  class IFrameWorker extends EventTarget {
    constructor(address) {
      super();
      this.waiting = []; // messages sent before the script is loaded
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.frame.srcdoc = "<!doctype html><body></body>";
      this.frame.onload = () => this.start(new URL(address, document.baseURI));
      document.body.append(this.frame);
    }

    async start(address) {
      const inner = this.frame.contentWindow;
      const load = (source) =>
        new Promise((loaded, failed) => {
          const script = inner.document.createElement("script");
          script.src = new URL(source, address);
          script.onload = loaded;
          script.onerror = failed;
          inner.document.body.append(script);
        });
      inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      inner.importScripts = async (...sources) => {
        for (const source of sources) await load(source);
      };
      await load(address);
      const messages = this.waiting;
      this.waiting = null;
      messages.forEach((data) => this.postMessage(data));
    }

    postMessage(data) {
      if (this.waiting) {
        this.waiting.push(data);
        return;
      }
      const inner = this.frame.contentWindow;
      inner.dispatchEvent(new inner.MessageEvent("message", { data }));
    }

    terminate() {
      this.frame.remove();
    }
  }
  window.IFrameWorker = IFrameWorker;
  window.Worker = IFrameWorker;
}
