// Search in pages that were opened from disk. Browsers refuse a Worker whose script is a file, so the search's worker
// runs in a hidden frame instead. Pages that come from a server keep the browser's own Worker.
if (location.protocol === "file:") {
  class IFrameWorker extends EventTarget {
    constructor(url) {
      super();
      this.waiting = [];
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inner = this.frame.contentWindow;
      inner.document.open();
      inner.document.write("<!doctype html><title>search</title>");
      inner.document.close();
      // What the worker's script expects of its global scope.
      inner.postMessage = (data) => {
        this.dispatchEvent(new MessageEvent("message", { data }));
      };
      inner.importScripts = (...urls) =>
        urls.reduce(
          (before, one) => before.then(() => this.load(new URL(one, url).href)),
          Promise.resolve(),
        );
      this.ready = this.load(url);
    }

    load(url) {
      return new Promise((resolve, reject) => {
        const script = this.frame.contentDocument.createElement("script");
        script.src = url;
        script.onload = resolve;
        script.onerror = () => reject(new Error(`cannot load ${url}`));
        this.frame.contentDocument.head.append(script);
      });
    }

    postMessage(data) {
      this.ready.then(() => {
        const inner = this.frame.contentWindow;
        inner.dispatchEvent(new inner.MessageEvent("message", { data }));
      });
    }

    terminate() {
      this.frame.remove();
    }
  }
  window.Worker = window.IFrameWorker = IFrameWorker; // the search asks for the second name
}
